package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

func TestLogPaging(t *testing.T) {
	w := newWorld(t)
	w.agent()
	// Two lines, then it waits to be told to write the last.
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	al := w.attempt("a1", 1, 1, fmt.Sprintf(`printf 'one\ntwo\n'; read x <%s; printf 'three\n'`, gate))
	w.want(al)
	w.event("a1", wire.EventStarted, 1)
	read := func(offset, limit int64) wire.LogChunk {
		return w.readLog(wire.ReadLog{Job: w.job("a1"), Alloc: "a1", Attempt: 0, Rank: 0, Stream: "stdout", Offset: offset, Limit: limit})
	}
	eventually(t, "two lines", func() error {
		if c := read(0, 0); string(c.Data) != "one\ntwo\n" || c.Ended {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if c := read(4, 2); string(c.Data) != "tw" || c.Start != 4 || c.Size != 8 || c.Ended {
		t.Errorf("a piece: %+v", c)
	}
	if c := read(8, 10); len(c.Data) != 0 || c.Ended {
		t.Errorf("at the end of a running rank's output: %+v", c)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	w.event("a1", wire.EventEnded, 1)
	if c := read(8, 3); string(c.Data) != "thr" || c.Ended {
		t.Errorf("not the last piece: %+v", c)
	}
	if c := read(11, 3); string(c.Data) != "ee\n" || !c.Ended {
		t.Errorf("the last piece: %+v, want Ended", c)
	}
	if c := read(99, 3); len(c.Data) != 0 || !c.Ended || c.Start != 14 {
		t.Errorf("behind the end: %+v", c)
	}
	if c := w.readLog(wire.ReadLog{Alloc: "a1", Attempt: 1, Stream: "stdout"}); c.Ended || c.Error != "" {
		t.Errorf("output of an attempt that has not begun: %+v, want nothing yet", c)
	}
	// A long file comes in bounded pieces.
	out := filepath.Join(w.dir("a1"), "out", "0", "0", "stderr.log")
	if err := os.WriteFile(out, []byte(strings.Repeat("x", 3*maxChunk)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := w.readLog(wire.ReadLog{Alloc: "a1", Stream: "stderr", Limit: 1 << 40})
	if len(c.Data) != maxChunk || c.Ended {
		t.Errorf("%d bytes in one piece, want %d; ended %t", len(c.Data), maxChunk, c.Ended)
	}
	w.want()
	w.event("a1", wire.EventGone, 0)
}

func TestLogOfFreedHead(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Repeat("a", 8192) + "tail"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 8192); err != nil {
		t.Skipf("skipped: needs a file system that frees parts of files: %v", err)
	}
	c, err := readRange(f, 100, 100)
	if err != nil || c.Start != 8192 || string(c.Data) != "tail" || c.Size != 8196 {
		t.Fatalf("%+v, %v; want what is left, from its offset on", c, err)
	}
}

func TestLogRefusals(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 1, 1, "echo output"))
	w.event("a1", wire.EventEnded, 1)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := wire.ReadLog{Alloc: "a1", Stream: "stdout"}
	if c := w.readLog(good); string(c.Data) != "output\n" {
		t.Fatalf("%+v", c)
	}
	for name, change := range map[string]func(*wire.ReadLog){
		"traversal in stream": func(r *wire.ReadLog) { r.Stream = "../../shim" },
		"negative attempt":    func(r *wire.ReadLog) { r.Attempt = -1 },
		"negative rank":       func(r *wire.ReadLog) { r.Rank = -1 },
		"negative offset":     func(r *wire.ReadLog) { r.Offset = -1 },
		"another job":         func(r *wire.ReadLog) { r.Job = "job-other" },
		"unknown allocation":  func(r *wire.ReadLog) { r.Alloc = "zz" },
		"traversal in id":     func(r *wire.ReadLog) { r.Alloc = "/../" + w.prefix + "a1" },
	} {
		r := good
		change(&r)
		if c := w.readLog(r); c.Error == "" || len(c.Data) > 0 {
			t.Errorf("%s: %+v, want a refusal", name, c)
		}
	}

	rank := filepath.Join(w.dir("a1"), "out", "0", "0")
	log := filepath.Join(rank, "stdout.log")
	replace := func(make func() error) {
		t.Helper()
		if err := os.RemoveAll(log); err != nil {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
	}
	for name, make := range map[string]func() error{
		"link":      func() error { return os.Symlink(secret, log) },
		"hard link": func() error { return os.Link(secret, log) },
		"pipe":      func() error { return unix.Mkfifo(log, 0o600) },
		"folder":    func() error { return os.Mkdir(log, 0o700) },
	} {
		replace(make)
		if c := w.readLog(good); c.Error == "" || len(c.Data) > 0 {
			t.Errorf("%s in the place of output: %+v, want a refusal", name, c)
		}
	}
	// Folders on the way are looked at too.
	elsewhere := t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, "stdout.log"), []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(rank); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, rank); err != nil {
		t.Fatal(err)
	}
	if c := w.readLog(good); c.Error == "" || len(c.Data) > 0 {
		t.Errorf("a link in the place of a rank's folder: %+v, want a refusal", c)
	}
}

// A rank that swaps its output for a link while it is read gets nothing of what the
// link leads to.
func TestLogSwap(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	rank := filepath.Join(dir, "alloc", "out", "0", "0")
	if err := os.MkdirAll(rank, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{secret: "canary", filepath.Join(dir, "plain"): "output"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		log := filepath.Join(rank, "stdout.log")
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			tmp := filepath.Join(dir, fmt.Sprint("tmp", n%2))
			os.Remove(tmp)
			if n%2 == 0 {
				_ = os.Symlink(secret, tmp)
			} else {
				_ = os.WriteFile(tmp, []byte("output"), 0o600)
			}
			_ = os.Rename(tmp, log)
		}
	}()
	read, refused := 0, 0
	for range 20000 {
		f, err := openBelow(filepath.Join(dir, "alloc"), "out", "0", "0", "stdout.log")
		if err != nil {
			refused++
			continue
		}
		c, err := readRange(f, 0, 100)
		f.Close()
		if strings.Contains(string(c.Data), "canary") {
			t.Fatal("read what the link leads to")
		}
		if err == nil {
			read++
		}
	}
	close(stop)
	<-done
	if read == 0 || refused == 0 {
		t.Fatalf("%d reads and %d refusals: nothing was swapped", read, refused)
	}
}

func TestPruneKeepsTheNewest(t *testing.T) {
	w := newWorld(t)
	a, err := New(w.options())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for i := range keepOutputs + 5 {
		dir := a.allocDir(fmt.Sprintf("a%03d", i))
		if err := os.MkdirAll(filepath.Join(dir, "out"), 0o700); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			continue // alive, and older than all others
		}
		path := filepath.Join(dir, endedFile)
		if err := os.WriteFile(path, mustJSON(t, ended{Alloc: filepath.Base(dir)}), 0o600); err != nil {
			t.Fatal(err)
		}
		at := unix.NsecToTimeval(int64(i+1) * 1e9)
		if err := unix.Utimes(path, []unix.Timeval{at, at}); err != nil {
			t.Fatal(err)
		}
	}
	a.prune()
	left, err := os.ReadDir(filepath.Join(w.state, allocFolder))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left[:3] {
		names = append(names, e.Name())
	}
	if len(left) != keepOutputs+1 || strings.Join(names, " ") != "a001 a005 a006" {
		t.Fatalf("%d left, the first %v; want the newest %d and the live a001", len(left), names, keepOutputs)
	}
}
