package page

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

func create(t *testing.T, generation uint64) *Page {
	t.Helper()
	p, err := Create(filepath.Join(t.TempDir(), "page"), generation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestNewPage(t *testing.T) {
	p := create(t, 1<<48|7)
	info, err := os.Stat(p.Path())
	if err != nil || info.Size() != Size || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	number, target := p.Proposal()
	verdict, word := p.Verdict()
	if p.Generation() != 1<<48|7 || p.Step() != -1 || p.Time() != 0 || p.Calls() != 0 || p.Phase() != 0 || p.Acknowledged() != 0 ||
		number != 0 || target != 0 || verdict != 0 || word != 0 || p.Settled() != 0 || p.Stop() {
		t.Error("a new page is not empty")
	}
	if _, ok := p.Age(); ok {
		t.Error("a rank that never reported has an age")
	}
}

// TestLayout pins every offset, because Python writes the same bytes.
func TestLayout(t *testing.T) {
	p := create(t, 1)
	rank, err := Open(p.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer rank.Close()
	rank.SetStep(2, 3)
	for range 4 {
		rank.AddCall()
	}
	rank.SetPhase(5)
	p.SetProposal(6, 7)
	p.SetVerdict(8, 2)
	rank.Acknowledge(9)
	rank.Settle(13)
	p.SetStop(true)
	b, err := os.ReadFile(p.Path())
	if err != nil {
		t.Fatal(err)
	}
	if string(b[:4]) != "TRPG" || binary.LittleEndian.Uint32(b[4:]) != Version {
		t.Errorf("head % x", b[:8])
	}
	for off, want := range map[int]uint64{8: 1, 16: 2, 24: 3, 32: 4, 40: 5, 48: 0, 56: 0, 64: 6, 72: 7, 80: 8, 88: 2, 96: 9, 104: 1, 112: 0, 120: 13, 128: 0} {
		if got := binary.LittleEndian.Uint64(b[off:]); got != want {
			t.Errorf("offset %d holds %d, want %d", off, got, want)
		}
	}
	number, target := rank.Proposal()
	verdict, word := rank.Verdict()
	if p.Step() != 2 || p.Time() != 3 || p.Calls() != 4 || p.Phase() != 5 || number != 6 || target != 7 || verdict != 8 || word != 2 || p.Acknowledged() != 9 || p.Settled() != 13 || !rank.Stop() {
		t.Error("one side does not read what the other wrote")
	}
	p.SetStop(false)
	p.SetVerdict(10, 0)
	rank.SetStep(11, Monotonic())
	if _, word := rank.Verdict(); word != 0 || rank.Stop() {
		t.Error("a flag cannot be cleared")
	}
	if age, ok := p.Age(); !ok || age < 0 {
		t.Errorf("age %v, %v", age, ok)
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	whole := make([]byte, Size)
	copy(whole, "TRPG\x01\x00\x00\x00")
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := append([]byte("TRPG\x02\x00\x00\x00"), whole[8:]...)
	swapped := append([]byte("GPRT\x01\x00\x00\x00"), whole[8:]...)
	good := write("good", whole)
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink(good, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"empty": write("empty", nil), "short": write("short", whole[:Size-1]), "long": write("long", append(whole, 0)),
		"zero": write("zero", make([]byte, Size)), "another version": write("v2", other), "another magic": write("magic", swapped),
		"a link": link, "a pipe": pipe,
	} {
		if p, err := Open(path); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v, %v", what, p, err)
		}
	}
	if _, err := Open(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory was opened")
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "target"), dangling); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{good, link, dangling, dir, pipe} {
		if _, err := Create(path, 1); !errors.Is(err, fs.ErrExist) {
			t.Errorf("create over %s: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); err == nil {
		t.Error("create followed a link")
	}
	p, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// A reader never sees a proposal's number beside another proposal's target.
func TestProposalIsNotTorn(t *testing.T) {
	p := create(t, 1)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
				p.SetProposal(n, int64(n))
			}
		}
	})
	seen := uint64(0)
	for range 200_000 {
		number, target := p.Proposal()
		if number != 0 && target != int64(number) {
			t.Fatalf("proposal %d with target %d", number, target)
		}
		if number != 0 && number < seen {
			t.Fatalf("proposal %d after %d", number, seen)
		}
		seen = max(seen, number)
	}
	close(stop)
	wg.Wait()
}

// A rank may do anything to the file; its shim must live on.
func TestTruncatedPage(t *testing.T) {
	p := create(t, 1)
	p.SetStep(5, 6)
	if err := os.Truncate(p.Path(), 0); err != nil {
		t.Fatal(err)
	}
	p.SetStop(true)
	if step := p.Step(); step != -1 || !p.Spoiled() {
		t.Errorf("step %d, spoiled %v", step, p.Spoiled())
	}
	if n, target := p.Proposal(); n != 0 || target != 0 {
		t.Errorf("proposal %d for %d", n, target)
	}
}

// Python's struct and mmap see the same page. sdk/python has its own test.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on the path: ", err)
	}
	p := create(t, 42)
	p.SetProposal(6, 700)
	script := `
import mmap, struct, sys
with open(sys.argv[1], "r+b") as f:
    m = mmap.mmap(f.fileno(), 4096)
magic, version, gen, step = struct.unpack_from("<4sIQq", m, 0)
assert (magic, version, gen, step) == (b"TRPG", 1, 42, -1), (magic, version, gen, step)
assert struct.unpack_from("<Qq", m, 64) == (6, 700)
struct.pack_into("<q", m, 16, 123)
struct.pack_into("<Q", m, 32, 9)
struct.pack_into("<Q", m, 96, 6)
struct.pack_into("<q", m, 24, 456)
`
	if out, err := exec.Command(python, "-c", script, p.Path()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if p.Step() != 123 || p.Time() != 456 || p.Calls() != 9 || p.Acknowledged() != 6 {
		t.Errorf("step %d time %d calls %d acknowledged %d", p.Step(), p.Time(), p.Calls(), p.Acknowledged())
	}
}
