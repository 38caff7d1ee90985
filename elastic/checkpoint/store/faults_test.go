package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/test/s3"
)

// TestFaultAtEveryPoint breaks the nth request of each operation, for every n and every
// kind of fault. What fails can be repeated as it was; in between nothing looks committed
// that is not whole, and what was committed stays whole (P4).
func TestFaultAtEveryPoint(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		older := e.commit(t, step(1, 1))
		number := int64(10)
		for _, op := range []struct {
			name  string
			ready func() saved
			do    func(ctx context.Context, s checkpoint.Store, x saved) error
			after func(t *testing.T, s checkpoint.Store, x saved)
		}{
			{"write-manifest", func() saved { return e.save(t, step(number, 3)) }, func(ctx context.Context, s checkpoint.Store, x saved) error {
				return s.WriteManifest(ctx, run, x.dir, x.data, x.digest)
			}, func(t *testing.T, s checkpoint.Store, x saved) {
				if _, data, err := s.Manifest(t.Context(), run, x.dir); err != nil || !bytes.Equal(data, x.data) {
					t.Errorf("the manifest is not there whole: %v", err)
				}
			}},
			{"write-committed", func() saved {
				x := e.save(t, step(number, 3))
				must(t, e.open(t).WriteManifest(t.Context(), run, x.dir, x.data, x.digest))
				return x
			}, func(ctx context.Context, s checkpoint.Store, x saved) error {
				return s.WriteCommitted(ctx, run, x.dir, x.mark(t))
			}, nil},
			{"write-rolled-back", func() saved { return e.commit(t, step(number, 3)) }, func(ctx context.Context, s checkpoint.Store, x saved) error {
				return s.WriteRolledBack(ctx, run, x.dir, rollBackMark(t))
			}, func(t *testing.T, s checkpoint.Store, x saved) {
				l, err := s.List(t.Context(), run)
				must(t, err)
				for _, c := range l.Candidates {
					if c.Dir == x.dir {
						t.Error("a step that was rolled back is a candidate")
					}
				}
			}},
			{"delete", func() saved { return e.commit(t, step(number, 3)) }, func(ctx context.Context, s checkpoint.Store, x saved) error {
				return s.Delete(ctx, run, x.dir)
			}, func(t *testing.T, _ checkpoint.Store, x saved) {
				if e.exists(t, x.StepName, checkpoint.CommittedFile) || e.exists(t, x.StepName, "shared/a/b.bin") {
					t.Error("the step is still there")
				}
			}},
		} {
			for _, f := range e.faults() {
				for nth := 1; ; nth++ {
					number++
					x, s := op.ready(), e.open(t)
					hit := e.count()
					remove := f.arm(e, nth)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					err := op.do(ctx, s, x)
					cancel()
					remove()
					struck := e.count() != hit || err != nil
					if l, lerr := s.List(t.Context(), run); lerr != nil {
						t.Fatal(lerr)
					} else if c := l.Candidates[len(l.Candidates)-1]; c.Dir != older.dir {
						t.Fatalf("%s, %s at %d: the older step is %s", op.name, f.name, nth, c.Dir)
					} else if top := l.Candidates[0]; top.Dir == x.dir {
						if _, err := s.Verify(t.Context(), run, x.dir, x.digest); err != nil {
							t.Fatalf("%s, %s at %d: it looks committed and is not whole: %v", op.name, f.name, nth, err)
						}
					}
					if err != nil {
						if err := op.do(t.Context(), s, x); err != nil {
							t.Errorf("%s, %s at %d: again: %v", op.name, f.name, nth, err)
						}
					}
					if op.after != nil {
						op.after(t, s, x)
					}
					must(t, s.Delete(t.Context(), run, x.dir))
					if !struck || nth > 40 {
						break
					}
				}
			}
		}
		if _, err := e.open(t).Verify(t.Context(), run, older.dir, older.digest); err != nil {
			t.Errorf("the older step: %v", err)
		}
	})
}

// TestFaultDuringUpload: an upload is confirmed only when the store keeps exactly the
// bytes of the file, in one part or in several.
func TestFaultDuringUpload(t *testing.T) {
	e := kinds["s3"](t)
	s := e.open(t).(*Bucket)
	small, large := bytes.Repeat([]byte("small"), 1000), bytes.Repeat([]byte("0123456789abcdef"), (testPart+100_000)/16)
	for name, data := range map[string][]byte{"small": small, "large": large} {
		local := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(local, data, 0o600))
		n := int64(0)
		for _, f := range e.faults() {
			for _, nth := range []int{1, 2, 4, 5} {
				if name == "small" && nth > 2 || f.name == "slow" {
					continue
				}
				n++
				dir, file := e.dir(step(n, 1)), "shared/"+name
				remove := f.arm(e, nth)
				_, _, err := s.Upload(t.Context(), run, dir, file, disk.OS(), local)
				remove()
				if err != nil {
					t.Logf("%s, %s at %d: %.300v", name, f.name, nth, err)
					if _, _, err = s.Upload(t.Context(), run, dir, file, disk.OS(), local); err != nil {
						t.Errorf("%s, %s at %d: again: %v", name, f.name, nth, err)
					}
				}
				got, err := os.ReadFile(e.at(step(n, 1), file))
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s, %s at %d: confirmed, and the store keeps %d bytes: %v", name, f.name, nth, len(got), err)
				}
			}
		}
	}
	// An upload that ends in the middle leaves parts; the sweep removes them.
	local := filepath.Join(t.TempDir(), "cut")
	must(t, os.WriteFile(local, large, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer e.proxy.Inject(s3.Fault{Method: "DELETE", Status: 403, Code: "AccessDenied"})()
	defer e.proxy.Inject(s3.Fault{Method: "PUT", Match: "partNumber=2", Before: cancel, Reset: true})()
	if _, _, err := s.Upload(ctx, run, e.dir(step(500, 1)), "shared/cut", disk.OS(), local); !errors.Is(err, context.Canceled) {
		t.Errorf("an upload that was ended: %v", err)
	}
}

// TestUnfinishedUploadsAreSwept: what a killed saver left of a large file goes.
func TestUnfinishedUploadsAreSwept(t *testing.T) {
	e := kinds["s3"](t)
	s := e.open(t).(*Bucket)
	local := filepath.Join(t.TempDir(), "cut")
	must(t, os.WriteFile(local, make([]byte, testPart+1), 0o600))
	stop := e.proxy.Inject(s3.Fault{Method: "DELETE", Status: 403, Code: "AccessDenied"})
	stopPart := e.proxy.Inject(s3.Fault{Method: "PUT", Match: "partNumber=2", Status: 403, Code: "AccessDenied"})
	if _, _, err := s.Upload(t.Context(), run, e.dir(step(5, 1)), "shared/cut", disk.OS(), local); err == nil {
		t.Fatal("the upload was not refused")
	}
	stop()
	stopPart()
	pending := func() int {
		n := 0
		must(t, s.abort(t.Context(), s.top(run)+"/", func(string, time.Time) bool { n++; return false }))
		return n
	}
	if pending() != 1 {
		t.Fatalf("%d unfinished uploads, want 1", pending())
	}
	for gen, want := range map[uint64]int{1: 1} { // the current generation's own may still run
		if _, err := s.Sweep(t.Context(), run, checkpoint.SweepOrder{Format: "troupe-sweep", Version: 1, Life: life, Generation: gen}, time.Now()); err != nil || pending() != want {
			t.Errorf("generation %d: %d left, %v", gen, pending(), err)
		}
	}
	if _, err := s.Sweep(t.Context(), run, checkpoint.SweepOrder{Format: "troupe-sweep", Version: 1, Life: life, Generation: 2}, time.Now()); err != nil || pending() != 0 {
		t.Errorf("%d left, %v", pending(), err)
	}
	// Another cluster's may still go on, until it is a day old.
	other := step(6, 1)
	other.Life = "ffffffff"
	key := s.key(e.dir(other), "shared/cut")
	_, err := s.client.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &s.at.Bucket, Key: &key})
	must(t, err)
	for _, age := range []time.Duration{checkpoint.ForeignAge - time.Hour, checkpoint.ForeignAge + time.Hour} {
		must(t, filepath.WalkDir(filepath.Join(e.root, "../../.sgwtmp"), func(name string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Chtimes(name, time.Time{}, time.Now().Add(-age)))
		}))
		want := 1
		if age > checkpoint.ForeignAge {
			want = 0
		}
		if _, err := s.Sweep(t.Context(), run, checkpoint.SweepOrder{Format: "troupe-sweep", Version: 1, Life: life, Generation: 2}, time.Now()); err != nil || pending() != want {
			t.Errorf("another life's, %s old: %d left, want %d: %v", age, pending(), want, err)
		}
	}
}

// TestLocalDiskIsNotTheStore: a full or failing disk of the node during a fetch says
// nothing about the step.
func TestLocalDiskIsNotTheStore(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		x, s := e.commit(t, step(5, 3)), e.open(t)
		m, _, err := s.Manifest(t.Context(), run, x.dir)
		must(t, err)
		for _, f := range []disk.Fault{
			{Op: disk.OpWrite, Err: syscall.ENOSPC, Partial: 3}, {Op: disk.OpSync, Err: syscall.EIO}, {Op: disk.OpOpen, Err: syscall.EROFS}, {Op: disk.OpMkdir, Err: syscall.EIO},
		} {
			local := disk.NewFaulty(disk.OS())
			remove := local.Inject(f)
			into := t.TempDir()
			v, err := checkpoint.Fetch(t.Context(), s, run, x.dir, m, local, into)
			if !errors.Is(err, f.Err) || len(v.Damaged()) != 0 {
				t.Errorf("%s: %+v, %v", f.Op, v, err)
			}
			remove()
			if v, err := checkpoint.Fetch(t.Context(), s, run, x.dir, m, local, into); err != nil || !v.Whole() {
				t.Errorf("%s: afterwards: %+v, %v", f.Op, v, err)
			}
		}
	})
}

// TestServerWithoutConditions: a server that ignores If-None-Match is found out before
// anything is saved there.
func TestServerWithoutConditions(t *testing.T) {
	s3.Environment(t)
	var mu sync.Mutex
	objects := map[string][]byte{}
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Method {
		case http.MethodPut:
			objects[r.URL.Path], _ = io.ReadAll(r.Body)
		case http.MethodGet:
			_, _ = w.Write(objects[r.URL.Path])
		}
	}))
	defer old.Close()
	s, err := quick("w").Open(t.Context(), "s3://bucket/x?endpoint="+old.URL+"&path-style=true")
	must(t, err)
	if err := s.WriteNonce(t.Context(), "abc"); !errors.Is(err, checkpoint.ErrNoCreateOnly) {
		t.Errorf("%v", err)
	}
}

// TestNoCredentialsNoBucket: what a user can mend is said in a sentence, and no secret in it.
func TestNoCredentialsNoBucket(t *testing.T) {
	e := kinds["s3"](t)
	s, err := e.stores.Open(t.Context(), "s3://nothing-here/x?endpoint="+e.proxy.Endpoint+"&path-style=true")
	must(t, err)
	if _, err = s.List(t.Context(), run); err == nil || !bytes.Contains([]byte(err.Error()), []byte("there is no bucket nothing-here")) {
		t.Errorf("no bucket: %v", err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
	s, err = quick("w").Open(t.Context(), e.address)
	must(t, err)
	_, err = s.List(t.Context(), run)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("the credentials of this node may not do it")) || bytes.Contains([]byte(err.Error()), []byte("wrong-secret-value")) {
		t.Errorf("a wrong key: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	s, err = quick("w").Open(t.Context(), e.address)
	must(t, err)
	if _, err = s.List(t.Context(), run); err == nil || !bytes.Contains([]byte(err.Error()), []byte("this node has no credentials")) {
		t.Errorf("no key: %v", err)
	}
}
