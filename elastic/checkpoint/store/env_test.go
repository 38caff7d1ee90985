package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/test/s3"
)

const (
	run  = "digits"
	life = "0a1b2c3d"
	// testPart is as small as the protocol allows.
	testPart = 5 << 20
)

// env is one kind of store with what a test must do behind its back.
type env struct {
	address string
	stores  *Stores
	disk    *disk.Faulty // of a directory
	proxy   *s3.Proxy    // of a bucket
	root    string       // where the files really lie
}

// kinds are the stores that the suite holds to one behaviour.
var kinds = map[string]func(t *testing.T) *env{
	"directory": func(t *testing.T) *env {
		e := &env{address: filepath.Join(t.TempDir(), "store"), disk: disk.NewFaulty(disk.OS())}
		e.root, e.stores = e.address, New(e.disk, "w1")
		return e
	},
	"s3": func(t *testing.T) *env {
		s := s3.Start(t)
		p := s3.NewProxy(t, s)
		return &env{address: s.Store("some/prefix", p), stores: quick("w1"), proxy: p, root: s.File("some/prefix")}
	},
}

// quick tries again without the pauses that a real store is given.
func quick(writer string) *Stores {
	s := New(disk.OS(), writer)
	s.backoff, s.part = time.Millisecond, testPart
	return s
}

// on runs a test on each kind of store.
func on(t *testing.T, f func(t *testing.T, e *env)) {
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			f(t, start(t))
		})
	}
}

func (e *env) open(t testing.TB) checkpoint.Store {
	t.Helper()
	s, err := e.stores.Open(t.Context(), e.address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (e *env) dir(n checkpoint.StepName) string { return checkpoint.StepDir(e.address, run, n) }

// at is where a file of a step lies on this machine.
func (e *env) at(n checkpoint.StepName, file string) string {
	return filepath.Join(e.root, run, n.String(), filepath.FromSlash(file))
}

func step(n int64, gen uint64) checkpoint.StepName {
	return checkpoint.StepName{Step: n, Generation: gen, Life: life}
}

// content is what the tests save: two ranks, one file that takes several parts, an empty
// one, one that both share.
func content(n checkpoint.StepName) map[string][]byte {
	return map[string][]byte{
		"rank-0/model.pt": bytes.Repeat([]byte(n.String()+" model "), 1000),
		"rank-0/rng.pt":   {},
		"rank-1/model.pt": []byte(n.String() + " rank 1"),
		"shared/a/b.bin":  bytes.Repeat([]byte{byte(n.Step)}, 70_000),
	}
}

// put saves the files of a step as ranks and savers do, without its manifest.
func (e *env) put(t testing.TB, n checkpoint.StepName, files map[string][]byte) []wire.Prepared {
	t.Helper()
	reports := []wire.Prepared{
		{Run: run, Step: n.Step, Generation: n.Generation, World: 2, Rank: 0, Dir: e.dir(n)},
		{Run: run, Step: n.Step, Generation: n.Generation, World: 2, Rank: 1, Dir: e.dir(n)},
	}
	s := e.open(t)
	for name, data := range files {
		rank := 0
		if strings.HasPrefix(name, "rank-1/") {
			rank = 1
		}
		var digest string
		var length int64
		if up, ok := s.(checkpoint.Uploader); ok {
			local := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(local, data, 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if digest, length, err = up.Upload(t.Context(), run, e.dir(n), name, disk.OS(), local); err != nil {
				t.Fatal(err)
			}
		} else {
			local := e.at(n, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(local), 0o755), os.WriteFile(local, data, 0o600)); err != nil {
				t.Fatal(err)
			}
			digest, length = checkpoint.DigestBytes(data), int64(len(data))
		}
		if digest != checkpoint.DigestBytes(data) || length != int64(len(data)) {
			t.Fatalf("%s: digest %s, length %d", name, digest, length)
		}
		reports[rank].Files = append(reports[rank].Files, wire.PreparedFile{Path: name, Length: length, Digest: digest, Part: "model"})
	}
	return reports
}

// place puts a file where another writer was first.
func (e *env) place(t testing.TB, n checkpoint.StepName, file string, data []byte) {
	t.Helper()
	if b, ok := e.open(t).(*Bucket); ok {
		if _, err := b.createOnly(t.Context(), b.key(e.dir(n), file), data); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(e.at(n, file), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// saved is a step whose manifest is ready to be written.
type saved struct {
	checkpoint.StepName
	dir    string
	data   []byte
	digest string
}

func (e *env) save(t testing.TB, n checkpoint.StepName) saved {
	t.Helper()
	data, digest, err := checkpoint.Build(e.put(t, n, content(n)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return saved{n, e.dir(n), data, digest}
}

func (s saved) mark(t testing.TB) []byte {
	t.Helper()
	b, err := checkpoint.NewCommittedMark("cluster-1", 7, s.digest)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// commit takes a step through manifest and mark.
func (e *env) commit(t testing.TB, n checkpoint.StepName) saved {
	t.Helper()
	s, store := e.save(t, n), e.open(t)
	if err := store.WriteManifest(t.Context(), run, s.dir, s.data, s.digest); err != nil {
		t.Fatal(err)
	}
	if err := store.WriteCommitted(t.Context(), run, s.dir, s.mark(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func rollBackMark(t testing.TB) []byte {
	t.Helper()
	b, err := checkpoint.NewRolledBackMark("cluster-1", 8, "damaged")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// exists reports whether a file of a step is really there.
func (e *env) exists(t testing.TB, n checkpoint.StepName, file string) bool {
	t.Helper()
	_, err := os.Lstat(e.at(n, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// fault is one way for the store to fail.
type fault struct {
	name string
	// arm strikes the nth operation (0: each) until it is removed.
	arm func(e *env, nth int) (remove func())
}

func diskFault(name string, f disk.Fault) fault {
	return fault{name, func(e *env, nth int) func() {
		f.Nth = nth
		return e.disk.Inject(f)
	}}
}

func netFault(name string, f s3.Fault) fault {
	return fault{name, func(e *env, nth int) func() {
		f.Nth = nth
		return e.proxy.Inject(f)
	}}
}

// faults that a kind of store can have. Each strikes one request; a store must come
// through it or fail such that the same call succeeds afterwards.
func (e *env) faults() []fault {
	if e.disk != nil {
		return []fault{
			diskFault("EIO", disk.Fault{Err: syscall.EIO}),
			diskFault("ENOSPC", disk.Fault{Err: syscall.ENOSPC}),
			diskFault("torn write", disk.Fault{Op: disk.OpWrite, Err: syscall.EIO, Partial: 10}),
			diskFault("read-only", disk.Fault{Err: syscall.EROFS}),
		}
	}
	return []fault{
		netFault("503", s3.Fault{Status: 503, Code: "SlowDown"}),
		netFault("full", s3.Fault{Method: "PUT", Status: 507, Code: "InsufficientStorage"}),
		netFault("refused", s3.Fault{Status: 403, Code: "AccessDenied"}),
		netFault("reset", s3.Fault{Reset: true}),
		netFault("lost answer", s3.Fault{Lose: true}),
		netFault("torn answer", s3.Fault{Method: "GET", CutBody: true}),
		netFault("spoiled on the way", s3.Fault{Method: "PUT", Spoil: true}),
		netFault("slow", s3.Fault{Delay: 20 * time.Millisecond}),
	}
}

// count is how many faults have struck so far; those of a disk are not counted.
func (e *env) count() int64 {
	if e.proxy == nil {
		return 0
	}
	return e.proxy.Hits.Load()
}

// gone makes the whole store unreachable until the returned function is called.
func (e *env) gone() func() {
	if e.disk != nil {
		return e.disk.Inject(disk.Fault{Err: syscall.EIO})
	}
	return e.proxy.Inject(s3.Fault{Reset: true})
}

func describe(l checkpoint.Listing) string {
	out := fmt.Sprintf("highest %d", l.HighestGeneration)
	for _, c := range l.Candidates {
		out += " " + path.Base(c.Dir)
	}
	return out + fmt.Sprint(" of ", len(l.Steps), " odd ", l.Odd)
}
