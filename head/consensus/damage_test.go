package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// flip changes one bit of a file.
func flip(t *testing.T, path string, offset int64, bit uint) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// fillLog makes a folder with entries of known text over several segments and
// returns them; the last batch is not among them (see the package comment).
func fillLog(t *testing.T, count int) (Config, []string) {
	t.Helper()
	c := initDir(t)
	n, _ := open(t, c)
	lead(t, n)
	var want []string
	for i := range count {
		e := fmt.Sprintf("entry-%04d-%s", i, strings.Repeat(string(rune('a'+i%26)), 300))
		propose(t, n, e)
		want = append(want, e)
	}
	propose(t, n, "last")
	closeNode(t, n)
	return c, want
}

// TestBitFlipInLogIsDetected: one flipped bit in the payload of a committed entry is
// either found when the node opens, or the value served is the untouched one.
func TestBitFlipInLogIsDetected(t *testing.T) {
	c, want := fillLog(t, 400)
	segments, err := filepath.Glob(filepath.Join(c.Dir, dirWAL, "*.wal"))
	if err != nil || len(segments) < 2 {
		t.Fatalf("segments %v, %v; want several", segments, err)
	}
	rng := rand.New(rand.NewPCG(5, 50))
	detected := 0
	for i := range 50 {
		victim := rng.IntN(len(want))
		needle := []byte(want[victim])
		for _, seg := range segments {
			b, err := os.ReadFile(seg)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(b, needle)
			if at < 0 {
				continue
			}
			offset, bit := int64(at+rng.IntN(len(needle))), uint(rng.IntN(8))
			d := c
			d.Dir = filepath.Join(t.TempDir(), fmt.Sprint(i))
			copyDir(t, c.Dir, d.Dir)
			flip(t, filepath.Join(d.Dir, dirWAL, filepath.Base(seg)), offset, bit)
			n, err := Open(d, &testMachine{})
			var damaged *DamagedLogError
			if err == nil {
				n.Close()
				t.Errorf("flip %d: bit %d at %d of entry %d was not found", i, bit, offset, victim)
			} else if !errors.As(err, &damaged) || damaged.Index == 0 {
				t.Errorf("flip %d: error %v names no entry", i, err)
			} else {
				detected++
			}
		}
	}
	if detected != 50 {
		t.Fatalf("%d of 50 flips detected", detected)
	}
}

// TestBitFlipAnywhereServesNoWrongValue flips bits anywhere in the used part of the
// segments, frame headers included: whatever is served is a prefix of the truth.
func TestBitFlipAnywhereServesNoWrongValue(t *testing.T) {
	c, want := fillLog(t, 400)
	want = append(want, "last")
	segments, _ := filepath.Glob(filepath.Join(c.Dir, dirWAL, "*.wal"))
	rng := rand.New(rand.NewPCG(6, 50))
	whole, short, refused := 0, 0, 0
	for i := range 50 {
		seg := segments[rng.IntN(len(segments))]
		b, err := os.ReadFile(seg)
		if err != nil {
			t.Fatal(err)
		}
		used := len(bytes.TrimRight(b, "\x00"))
		d := c
		d.Dir = filepath.Join(t.TempDir(), fmt.Sprint(i))
		copyDir(t, c.Dir, d.Dir)
		flip(t, filepath.Join(d.Dir, dirWAL, filepath.Base(seg)), int64(rng.IntN(used)), uint(rng.IntN(8)))
		m := &testMachine{}
		n, err := Open(d, m)
		if err != nil {
			if !errors.Is(err, ErrDamagedLog) && !errors.Is(err, ErrDamagedFolder) {
				t.Errorf("flip %d: %v", i, err)
			}
			refused++
			continue
		}
		lead(t, n)
		got := m.all()
		n.Close()
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("flip %d: a wrong value was served", i)
		}
		switch len(got) {
		case len(want):
			whole++
		case len(want) - 1: // the last batch; see the package comment
			short++
		default:
			t.Errorf("flip %d: %d of %d entries are left, and nobody says so", i, len(got), len(want))
		}
	}
	t.Logf("%d refused, %d whole, %d with a shorter log (needs the durable floor)", refused, whole, short)
	if refused == 0 {
		t.Fatal("no flip was detected at all")
	}
}

// TestDamageWhileRunning: an entry that goes bad between Open's check and its use
// stops the node; nothing of it and nothing after it is applied.
func TestDamageWhileRunning(t *testing.T) {
	c, want := fillLog(t, 30)
	// The log is read by Open's scan and then by Raft; the second read is bad.
	c.vfs = &badReads{FS: walfs.New(), needle: []byte(want[10]), skip: 2}
	m := &testMachine{}
	n, err := Open(c, m)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer n.Close()
	select {
	case err := <-n.Fatal():
		if !errors.Is(err, ErrDamagedLog) {
			t.Fatalf("fatal: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("damage was not noticed; %+v", n.Stats())
	}
	if got := m.all(); len(got) > 10 {
		t.Fatalf("%d entries applied, the damaged one is number 10", len(got))
	}
	if _, err := n.Propose(testCtx(t), []byte("x")); !errors.Is(err, ErrStopped) {
		t.Fatalf("Propose: %v", err)
	}
}

// badReads flips a bit in what is read once needle was read skip times.
type badReads struct {
	*walfs.FS
	needle []byte
	skip   int
}

func (v *badReads) OpenReader(dir, name string) (types.ReadableFile, error) {
	f, err := v.FS.OpenReader(dir, name)
	return &badFile{ReadableFile: f, v: v}, err
}

func (v *badReads) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.FS.OpenWriter(dir, name)
	return &badWritable{WritableFile: f, v: v}, err
}

type badFile struct {
	types.ReadableFile
	v *badReads
}

func (f *badFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.ReadableFile.ReadAt(p, off)
	f.v.spoil(p[:n])
	return n, err
}

type badWritable struct {
	types.WritableFile
	v *badReads
}

func (f *badWritable) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.WritableFile.ReadAt(p, off)
	f.v.spoil(p[:n])
	return n, err
}

func (v *badReads) spoil(p []byte) {
	// Reads are 64 KiB ahead; only the one that begins at the entry counts.
	if at := bytes.Index(p, v.needle); at >= 0 && at < 64 {
		if v.skip--; v.skip < 0 {
			p[at+20] ^= 4
		}
	}
}

// TestFSMChecksAgain: the last check stands between memory and the machine.
func TestFSMChecksAgain(t *testing.T) {
	var fatal error
	m := &testMachine{}
	f := &fsm{machine: m, fail: func(err error) { fatal = err }}
	l := raft.Log{Index: 7, Term: 2, Data: []byte("payload")}
	seal(&l)
	if _, bad := f.Apply(&l).(notApplied); bad || fatal != nil {
		t.Fatalf("whole entry: %v", fatal)
	}
	l.Index = 8
	seal(&l)
	l.Data = []byte("paiload")
	if _, bad := f.Apply(&l).(notApplied); !bad || !errors.Is(fatal, ErrDamagedLog) {
		t.Fatalf("changed entry was applied, fatal %v", fatal)
	}
	l.Data = []byte("payload")
	if _, bad := f.Apply(&l).(notApplied); !bad || len(m.all()) != 1 {
		t.Fatal("something was applied after the damage")
	}
}

// TestSealCoversEverything: a change to any part of an entry that matters shows.
func TestSealCoversEverything(t *testing.T) {
	base := raft.Log{Index: 3, Term: 4, Type: raft.LogCommand, Data: []byte("abc")}
	seal(&base)
	for name, change := range map[string]func(*raft.Log){
		"term":    func(l *raft.Log) { l.Term++ },
		"type":    func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":    func(l *raft.Log) { l.Data = []byte("abd") },
		"shorter": func(l *raft.Log) { l.Data = l.Data[:2] },
		"index":   func(l *raft.Log) { l.Index = 4 },
		"none":    func(l *raft.Log) { l.Extensions = nil },
		"version": func(l *raft.Log) { l.Extensions = append([]byte{9}, l.Extensions[1:]...) },
	} {
		l := base
		if err := checkSeal(3, &l); err != nil {
			t.Fatal(err)
		}
		change(&l)
		if err := checkSeal(3, &l); !errors.Is(err, ErrDamagedLog) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A head that is not in its own log's configuration would wait for a leader for ever.
func TestForeignNodeIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := Init(Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if err := writeAtomic(filepath.Join(dir, fileNode), []byte("somebody-else\n")); err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Dir: dir}, &testMachine{})
	if err == nil {
		_ = n.Close()
	}
	if !errors.Is(err, ErrDamagedFolder) || !strings.Contains(err.Error(), "somebody-else") {
		t.Errorf("opened: %v", err)
	}
}
