package agent

import (
	"fmt"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// What a program outside has started with an allocation's environment is below no shim and in
// no group. It is found by its mark all the same, a while after the allocation has ended.
func TestMarksOutsideAreSwept(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 1, 1, "exec sleep 1000"))
	w.event("a1", wire.EventStarted, 1)
	cookie := w.configs()[0].Cookie
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{process.CookieEnv + "=" + cookie}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	w.want()
	w.event("a1", wire.EventGone, 0)
	eventually(t, "the end of what an outside program started", func() error {
		if p, err := process.ReadProc(cmd.Process.Pid); err == nil && !p.Dead() {
			return fmt.Errorf("process %d lives", p.PID)
		}
		return nil
	})
}

// Many heartbeats within a second concern a shim no more than one does.
func TestShimsHearFewRenewals(t *testing.T) {
	simulated(t, nil, func(w *world, a *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.event(1, wire.EventStarted, 1)
		synctest.Wait()
		_, beats := w.counts()
		renewals, starts := len(s.of("renew")), len(s.of("start"))
		for range 200 {
			wake(a.wakeSession)
			time.Sleep(50 * time.Millisecond)
		}
		_, after := w.counts()
		if got := len(s.of("renew")) - renewals; after-beats < 150 || got < 8 || got > 21 {
			t.Errorf("%d renewals in ten seconds of %d heartbeats", got, after-beats)
		}
		if got := len(s.of("start")) - starts; got != 0 {
			t.Errorf("a start that was taken was told %d times more", got)
		}
	})
}
