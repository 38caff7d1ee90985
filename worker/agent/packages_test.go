package agent

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/troupe-runtime/troupe/runtime/pack"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// parcel is an archive as a head would have it.
type parcel struct {
	hash string
	data []byte
}

func parcelOf(data []byte) parcel {
	sum := sha256.Sum256(data)
	return parcel{hex.EncodeToString(sum[:]), data}
}

// packed is a folder with one file.
func packed(t *testing.T, name, content string) parcel {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := pack.Scan(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := f.Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return parcelOf(b.Bytes())
}

// hostile is an archive that no packer makes.
func hostile(t *testing.T, h tar.Header) parcel {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	if err := errors.Join(w.WriteHeader(&h), w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return parcelOf(b.Bytes())
}

// pieces hands a parcel out in pieces of n bytes.
func (p parcel) pieces(n int) func(wire.PackageRequest) wire.PackagePiece {
	return func(r wire.PackageRequest) wire.PackagePiece {
		if r.Hash != p.hash {
			return wire.PackagePiece{Error: "not that one"}
		}
		end := min(int(r.Offset)+n, len(p.data))
		return wire.PackagePiece{Size: int64(len(p.data)), Data: p.data[r.Offset:end]}
	}
}

func (w *world) inPackage(id string, gen uint64, p parcel, script string) wire.Alloc {
	x := w.attempt(id, gen, 1, script)
	x.Attempt.Package, x.Attempt.WorkingDir = p.hash, ""
	return x
}

// kept lists the folder of packages.
func (w *world) kept() []string {
	list, err := os.ReadDir(filepath.Join(w.state, packageFolder))
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Each allocation has a copy of its own; it stays over attempts and goes with it.
func TestRanksRunInACopyOfTheirPackage(t *testing.T) {
	w := newWorld(t)
	p := packed(t, "data", "content")
	w.set(func() { w.piece = p.pieces(7) })
	w.agent()
	const script = `pwd; cat data; ls | wc -l; echo more > mine; while ! test -e stop; do sleep 0.01; done`
	a, b := w.inPackage("a", 1, p, script), w.inPackage("b", 2, p, script)
	w.want(a, b)
	w.event("a", wire.EventStarted, 1)
	w.event("b", wire.EventStarted, 2)
	for _, id := range []string{"a", "b"} {
		dir := filepath.Join(w.dir(id), workFolder)
		want := dir + "\ncontent1\n"
		eventually(t, "the rank's words", func() error {
			if got := w.output(id, map[string]int64{"a": 0, "b": 1}[id], 0); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	if got := w.kept(); len(got) != 1 || got[0] != p.hash+archiveSuffix {
		t.Errorf("kept: %v", got)
	}
	if err := os.WriteFile(filepath.Join(w.dir("a"), workFolder, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.event("a", wire.EventEnded, 1)
	a = w.inPackage("a", 3, p, "ls | wc -l")
	w.want(a, b)
	w.event("a", wire.EventEnded, 3)
	if got := strings.TrimSpace(w.output("a", 2, 0)); got != "3" {
		t.Errorf("the second attempt finds %s files, not data, mine and stop", got)
	}
	w.want(b)
	w.event("a", wire.EventGone, 0)
	eventually(t, "the end of the copy", func() error {
		if _, err := os.Stat(filepath.Join(w.dir("a"), workFolder)); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(w.dir("b"), workFolder, "mine")); err != nil {
		t.Errorf("the copy of the other: %v", err)
	}
	w.want()
	w.event("b", wire.EventGone, 0)
}

// What cannot be fetched or unpacked fails the start by name, without a code, so that it
// counts as the machine's and is tried again; and nothing of it is left.
func TestPackageThatDoesNotCome(t *testing.T) {
	good := packed(t, "data", "content")
	out := hostile(t, tar.Header{Name: "../out", Mode: 0o644})
	noise := parcelOf([]byte("no archive at all"))
	for _, c := range []struct {
		name   string
		parcel parcel
		piece  func(wire.PackageRequest) wire.PackagePiece
		text   string
	}{
		{"refused", good, func(wire.PackageRequest) wire.PackagePiece {
			return wire.PackagePiece{Error: "no job on this node has it"}
		}, "the head does not give it: no job on this node has it"},
		{"other bytes", good, parcel{good.hash, []byte("something else")}.pieces(100), "the head's copy is damaged"},
		{"too large", good, func(wire.PackageRequest) wire.PackagePiece {
			return wire.PackagePiece{Size: pack.MaxArchive + 1, Data: []byte("x")}
		}, "package-archive"},
		{"too long a piece", good, func(wire.PackageRequest) wire.PackagePiece {
			return wire.PackagePiece{Size: 3, Data: []byte("12345")}
		}, "does not fit"},
		{"nothing more", good, func(wire.PackageRequest) wire.PackagePiece {
			return wire.PackagePiece{Size: 3}
		}, "does not fit"},
		{"no hash", parcel{hash: "../../x"}, nil, "no SHA-256"},
		{"climbs out", out, out.pieces(1 << 20), `"../out" leads out of the folder`},
		{"no archive", noise, noise.pieces(5), "the package is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.set(func() { w.piece = c.piece })
			w.agent(func(o *Options) { o.Name = "box" })
			w.want(w.inPackage("a", 1, c.parcel, "true"))
			ev := w.event("a", wire.EventStartFailed, 1)
			if ev.Code != 0 || !strings.Contains(ev.Message, "node box") || !strings.Contains(ev.Message, c.text) {
				t.Errorf("%d %q, want %q", ev.Code, ev.Message, c.text)
			}
			for _, name := range w.kept() {
				if !strings.HasSuffix(name, archiveSuffix) {
					t.Errorf("%s was left behind", name)
				}
			}
			if _, err := os.Stat(filepath.Join(w.dir("a"), workFolder)); err == nil {
				t.Error("there is a copy")
			}
			// The next attempt tries anew.
			w.set(func() { w.piece = good.pieces(1 << 20) })
			w.want(w.inPackage("a", 2, good, "cat data"))
			w.event("a", wire.EventEnded, 2)
			if got := w.output("a", 1, 0); got != "content" {
				t.Errorf("%q", got)
			}
			w.want()
			w.event("a", wire.EventGone, 0)
		})
	}
}

// An agent that ends in the middle of a fetch, whatever it leaves, starts it anew; while it
// fetches, its heartbeats say how far it is.
func TestAgentEndsInMidFetch(t *testing.T) {
	w := newWorld(t)
	p := packed(t, "data", "content")
	first := p.pieces(10)
	w.set(func() {
		w.piece = func(r wire.PackageRequest) wire.PackagePiece {
			if r.Offset > 0 {
				w.mute[wire.HeadPackage] = true
			}
			return first(r)
		}
	})
	_, stop := w.agent()
	w.want(w.inPackage("a", 1, p, "cat data"))
	w.until("heartbeat that says how far it is", func() bool {
		if len(w.beats) == 0 {
			return false
		}
		for _, a := range w.beats[len(w.beats)-1].Allocs {
			if f := a.Fetch; f != nil && f.Done > 0 && f.Size == int64(len(p.data)) {
				return true
			}
		}
		return false
	})
	stop()
	// What a kill would leave; and a copy that a power cut may have torn.
	for _, name := range []string{"0123-1.part", p.hash} {
		if err := os.MkdirAll(filepath.Join(w.state, packageFolder, name, "torn"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.set(func() { w.piece, w.mute[wire.HeadPackage] = p.pieces(10), false })
	w.agent()
	w.event("a", wire.EventEnded, 1)
	if got := w.output("a", 0, 0); got != "content" {
		t.Errorf("%q", got)
	}
	if got := w.kept(); len(got) != 1 {
		t.Errorf("kept: %v", got)
	}
	w.want()
	w.event("a", wire.EventGone, 0)
}

// An archive that was damaged on this node's disk is found out and fetched again.
func TestDamagedArchiveIsFetchedAgain(t *testing.T) {
	w := newWorld(t)
	p := packed(t, "data", "content")
	asked := 0
	w.set(func() {
		w.piece = func(r wire.PackageRequest) wire.PackagePiece {
			asked++
			return p.pieces(1 << 20)(r)
		}
	})
	if err := os.MkdirAll(filepath.Join(w.state, packageFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(p.data)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(filepath.Join(w.state, packageFolder, p.hash+archiveSuffix), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	w.agent()
	w.want(w.inPackage("a", 1, p, "cat data"))
	w.event("a", wire.EventEnded, 1)
	if got := w.output("a", 0, 0); got != "content" {
		t.Errorf("%q", got)
	}
	w.set(func() {
		if asked != 1 {
			t.Errorf("the head was asked %d times", asked)
		}
	})
	w.want()
	w.event("a", wire.EventGone, 0)
}

// The question before a start looks into the package, and says while it is on its way.
func TestStartCheckInAPackage(t *testing.T) {
	w := newWorld(t)
	p := packed(t, "data", "content")
	w.set(func() { w.piece, w.mute[wire.HeadPackage] = p.pieces(1<<20), true })
	w.agent()
	ask := func(dir string, command ...string) wire.StartCheckReply {
		var r wire.StartCheckReply
		w.ask(wire.NodeStartCheck(node), wire.StartCheck{Job: "j", Package: p.hash, WorkingDir: dir, Command: command, Path: "/usr/bin:/bin"}, &r)
		return r
	}
	if r := ask("", "sh"); r.Fetch == nil || r.Error != "" {
		t.Errorf("while it comes: %+v", r)
	}
	w.set(func() { w.mute[wire.HeadPackage] = false })
	eventually(t, "the end of the fetch", func() error {
		if r := ask("", "sh", "data"); r != (wire.StartCheckReply{}) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	for _, c := range []struct {
		dir, program, text string
		code               int64
	}{
		{"", "./nosuch", "nosuch", 127},
		{"sub", "sh", "the package: ./sub", 127},
		{"../../x", "sh", "not below the root", 126},
	} {
		if r := ask(c.dir, c.program); r.Code != c.code || !strings.Contains(r.Error, c.text) || strings.Contains(r.Error, w.state) {
			t.Errorf("%s in %q: %+v", c.program, c.dir, r)
		}
	}
	if got := w.kept(); len(got) != 2 { // the archive, and a copy that waits for an allocation
		t.Errorf("kept: %v", got)
	}
	w.want(w.inPackage("a", 1, p, "cat data"))
	w.event("a", wire.EventEnded, 1)
	if got := w.kept(); len(got) != 1 || w.output("a", 0, 0) != "content" {
		t.Errorf("the copy was not taken: %v", got)
	}
	w.want()
	w.event("a", wire.EventGone, 0)
}

// An attempt that is to end while its package comes ends, and not as a failed start: that
// would be taken for what ended it. The allocation goes without waiting for the rest.
func TestStopWhileAPackageComes(t *testing.T) {
	w := newWorld(t)
	p := packed(t, "data", "content")
	asked := false
	w.set(func() {
		w.piece = func(r wire.PackageRequest) wire.PackagePiece {
			asked, w.mute[wire.HeadPackage] = true, true
			return p.pieces(10)(r)
		}
	})
	w.agent()
	x := w.inPackage("a", 1, p, "cat data")
	w.want(x)
	w.until("question for the package", func() bool { return asked })
	x.Stop = &wire.StopOrder{Reason: "a rank or node of the attempt is gone", Quiet: true}
	w.want(x)
	if ev := w.event("a", wire.EventEnded, 1); !strings.Contains(ev.Message, "before its package") {
		t.Errorf("%+v", ev)
	}
	w.want()
	w.event("a", wire.EventGone, 0)
	for _, k := range w.kinds("a") {
		if k != wire.EventEnded && k != wire.EventGone {
			t.Errorf("event %s", k)
		}
	}
}
