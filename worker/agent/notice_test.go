package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func TestParseNotice(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		text string
		want time.Duration // 0: refused
	}{
		{"", time.Minute},
		{" \n", time.Minute},
		{"120s", 2 * time.Minute},
		{" 1m30s\n", 90 * time.Second},
		{"24h", 24 * time.Hour},
		{"2026-01-02T15:05:05Z", time.Minute},
		{"2026-01-02T17:05:05+02:00", time.Minute},
		{"2026-01-02T15:04:05.5Z", 500 * time.Millisecond},
		{"2026-01-02T15:00:00Z", time.Millisecond}, // it has come
		{"0s", 0},
		{"-5s", 0},
		{"24h0m1s", 0},
		{"2026-01-03T15:04:06Z", 0},
		{"120", 0},
		{"soon", 0},
		{"2026-01-02 15:05:05", 0},
		{"120s\n120s", 0},
		{strings.Repeat("9", 400) + "s", 0},
	} {
		got, err := ParseNotice(c.text, now, time.Minute)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%.40q: %s, %v; want %s", c.text, got, err, c.want)
		}
	}
}

// TestNoticeFile: what lies at the path is a notice, whatever it is; what cannot be looked
// at is neither a notice nor the end of one.
func TestNoticeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notice")
	write := func(p, text string) error { return os.WriteFile(p, []byte(text), 0o600) }
	for _, c := range []struct {
		name  string
		make  func() error
		there bool
		text  string
		odd   bool
	}{
		{"nothing", func() error { return nil }, false, "", false},
		{"empty", func() error { return write(path, "") }, true, "", false},
		{"text", func() error { return write(path, "5s\n") }, true, "5s\n", false},
		{"no UTF-8", func() error { return write(path, "\xff") }, true, "?", false},
		{"long", func() error { return write(path, strings.Repeat("x", maxNoticeFile+1)) }, true, "", true},
		{"folder", func() error { return os.Mkdir(path, 0o700) }, true, "", true},
		{"pipe", func() error { return syscall.Mkfifo(path, 0o600) }, true, "", true},
		{"link", func() error {
			return errors.Join(write(filepath.Join(dir, "real"), "5s"), os.Symlink("real", path))
		}, true, "5s", false},
		{"link to nothing", func() error { return os.Symlink("none", path) }, false, "", false},
		{"link to itself", func() error { return os.Symlink("notice", path) }, false, "", true},
	} {
		if err := errors.Join(os.RemoveAll(path), c.make()); err != nil {
			t.Fatal(err)
		}
		text, there, err := readNotice(path)
		if there != c.there || text != c.text || (err != nil) != c.odd {
			t.Errorf("%s: %q, there %v, %v", c.name, text, there, err)
		}
	}
	if _, there, err := readNotice(filepath.Join(dir, "real", "below")); there || err != nil {
		t.Errorf("below a file: %v, %v", there, err)
	}
}

// noticed is what a head hears of one node's end.
func (h *testHead) noticed(t *testing.T, list *[]wire.Notice, reply func(m wire.Notice) *wire.NoticeAck) {
	un, err := h.conn.Subscribe(wire.HeadNotice+"*", func(m bus.Msg) {
		h.mu.Lock()
		defer h.mu.Unlock()
		n := decode[wire.Notice](t, m.Data)
		if err := n.Check(); err != nil {
			t.Error(err)
		}
		*list = append(*list, n)
		if ack := reply(n); ack != nil {
			data, _ := wire.Marshal(ack)
			_ = m.Respond(data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(un)
}

// TestNoticeSaid: a notice is said until a head takes it, under one number and with the
// time that is really left; what the file says wrongly is refused with a line of the log.
func TestNoticeSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notice")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	simulated(t, func(w *world) {
		w.change = append(w.change, func(o *Options) { o.NoticeFile, o.NoticeGrace = file, time.Minute })
	}, func(w *world, a *Agent, _ *scripted) {
		synctest.Wait()
		// An older head: nobody listens. Then one that does not answer, then one that has
		// forgotten the session.
		put("in a while")
		begun := time.Now()
		time.Sleep(10 * time.Second)
		var list []wire.Notice
		how := "mute"
		w.noticed(w.t, &list, func(m wire.Notice) *wire.NoticeAck {
			switch how {
			case "mute":
				return nil
			case "unknown":
				return &wire.NoticeAck{Number: m.Number, Unknown: true}
			}
			return &wire.NoticeAck{Number: m.Number}
		})
		said := func() []wire.Notice {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(list)
		}
		heard := func() int { return len(said()) }
		newest := func() wire.Notice { return said()[heard()-1] }
		time.Sleep(12 * time.Second)
		if heard() < 2 {
			t.Fatalf("heard %d times in 12 s", heard())
		}
		sessions, _ := w.counts()
		w.set(func() { how = "unknown" })
		time.Sleep(10 * time.Second)
		w.set(func() { how = "" })
		time.Sleep(10 * time.Second)
		if now, _ := w.counts(); now == sessions {
			t.Error("it did not register again")
		}
		n := heard()
		time.Sleep(time.Minute)
		if heard() != n {
			t.Errorf("said %d times more after it was taken", heard()-n)
		}
		for _, m := range said() {
			if m.Number != said()[0].Number || m.Withdrawn || m.Boot != a.BootID {
				t.Errorf("%+v", m)
			}
		}
		if left := said()[n-1].Left.D(); left > time.Minute-30*time.Second || left <= 0 {
			t.Errorf("%s left after %s of a minute", left, time.Since(begun))
		}
		if log := w.log.String(); strings.Count(log, `in a while`) != 1 {
			t.Errorf("the log says %d times that the file is odd", strings.Count(log, `in a while`))
		}
		// Another time in the file, then none.
		put("90s")
		time.Sleep(time.Second)
		if m := newest(); heard() != n+1 || m.Number <= said()[0].Number || m.Left.D() < 89*time.Second || m.Left.D() > 90*time.Second {
			t.Errorf("%d more, %+v", heard()-n, m)
		}
		a.NoticeSignal("SIGPWR") // sooner than the file's
		time.Sleep(time.Second)
		first := newest()
		if first.Cause != "signal SIGPWR" || first.Left.D() > time.Minute {
			t.Errorf("%+v", first)
		}
		time.Sleep(10 * time.Second)
		a.NoticeSignal("SIGPWR") // again: no later
		time.Sleep(time.Second)
		if m := newest(); m.Number == first.Number || m.Left > first.Left {
			t.Errorf("%+v after %+v", m, first)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if m := newest(); m.Withdrawn {
			t.Errorf("the end of the file takes the signal back: %+v", m)
		}
		put("")
		time.Sleep(2 * time.Minute)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if m := newest(); !m.Withdrawn {
			t.Errorf("%+v", m)
		}
	})
}
