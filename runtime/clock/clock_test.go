package clock

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Virtual()
		now, boot := c.Now(), c.Boot()
		timer, ticker := c.NewTimer(90*time.Minute), c.NewTicker(time.Hour)
		defer ticker.Stop()
		<-timer.C()
		if c.Boot()-boot != 90*time.Minute || c.Now().Sub(now) != 90*time.Minute {
			t.Errorf("after 90 minutes: %v by boot, %v by wall", c.Boot()-boot, c.Now().Sub(now))
		}
		<-ticker.C()
		<-ticker.C()
		ticker.Reset(time.Second)
		<-ticker.C()
		<-c.After(time.Minute)
		if got, want := c.Boot()-boot, 2*time.Hour+61*time.Second; got != want {
			t.Errorf("%v, want %v", got, want)
		}
		if timer.Reset(time.Hour) || !timer.Stop() {
			t.Error("Reset of a fired timer or Stop of a running one answered wrong")
		}
		c.NewTicker(0).Stop()
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Virtual()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := c.Boot()
		if err := c.Sleep(ctx, 59*time.Second); err != nil || c.Boot()-start != 59*time.Second {
			t.Errorf("%v after %v", err, c.Boot()-start)
		}
		if err := c.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || c.Boot()-start != time.Minute {
			t.Errorf("%v after %v", err, c.Boot()-start)
		}
		if err := c.Sleep(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sleep of an ended context: %v", err)
		}
		if err := c.Sleep(t.Context(), -1); err != nil || c.Boot()-start != time.Minute {
			t.Errorf("negative sleep: %v after %v", err, c.Boot()-start)
		}
	})
}

// Boot is the clock that other programs of the machine read as uptime.
func TestRealBootIsUptime(t *testing.T) {
	uptime := func() time.Duration {
		b, err := os.ReadFile("/proc/uptime")
		if err != nil {
			t.Skip("no /proc/uptime here: ", err)
		}
		f, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(f * float64(time.Second))
	}
	before, boot, after := uptime(), Real().Boot(), uptime()
	if boot < before-20*time.Millisecond || boot > after+20*time.Millisecond {
		t.Errorf("Boot %v is not between %v and %v", boot, before, after)
	}
}
