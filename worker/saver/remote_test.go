package saver

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/test/s3"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// rig is one allocation that saves to a bucket.
type rig struct {
	t      *testing.T
	fs     *disk.Faulty
	server *s3.Server
	proxy  *s3.Proxy
	store  string
	dir    string
}

func newRig(t *testing.T) *rig {
	s := s3.Start(t)
	p := s3.NewProxy(t, s)
	return &rig{t, disk.NewFaulty(disk.OS()), s, p, s.Store("runs", p), t.TempDir()}
}

func (r *rig) request(op string, step int64, gen uint64) *shim.SaverRequest {
	return &shim.SaverRequest{
		Op: op, Store: r.store, Run: "r", Step: step, Generation: gen, Life: "0123abcd", Shares: 1,
		Staging: filepath.Join(r.dir, "staging"), Restore: filepath.Join(r.dir, "restore"),
	}
}

func (r *rig) do(req *shim.SaverRequest) *shim.SaverReply {
	r.t.Helper()
	return Do(r.t.Context(), r.fs, req)
}

// save is what one rank does; it returns the manifest of the step.
func (r *rig) save(step int64, gen uint64, data []byte) (manifest []byte, digest, dir string) {
	r.t.Helper()
	rep := r.do(r.request("begin", step, gen))
	if rep.Error != "" || !strings.HasPrefix(rep.Path, r.dir) {
		r.t.Fatalf("begin: %+v", rep)
	}
	if err := os.WriteFile(filepath.Join(rep.Path, "model.pt"), data, 0o600); err != nil {
		r.t.Fatal(err)
	}
	req := r.request("prepare", step, gen)
	req.Files = []shim.RankFile{{Path: "rank-0/model.pt", Part: "model"}}
	rep = r.do(req)
	if rep.Error != "" || len(rep.Files) != 1 || rep.Files[0].Digest != checkpoint.DigestBytes(data) || !checkpoint.Remote(rep.Dir) {
		r.t.Fatalf("prepare: %+v", rep)
	}
	p := wire.Prepared{Run: "r", Generation: gen, Step: step, World: 1, Dir: rep.Dir}
	for _, f := range rep.Files {
		p.Files = append(p.Files, wire.PreparedFile{Path: f.Path, Length: f.Length, Digest: f.Digest, Part: f.Part})
	}
	manifest, digest, err := checkpoint.Build([]wire.Prepared{p}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return manifest, digest, rep.Dir
}

// commit writes the manifest as an agent does.
func (r *rig) commit(manifest []byte, digest, dir string) {
	r.t.Helper()
	s, err := stores.Open(r.t.Context(), r.store)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.WriteManifest(r.t.Context(), "r", dir, manifest, digest); err != nil {
		r.t.Fatal(err)
	}
}

func TestBucketWholeWay(t *testing.T) {
	r := newRig(t)
	data := bytes.Repeat([]byte("weights "), 1<<16)
	manifest, digest, dir := r.save(3, 2, data)
	if left, _ := filepath.Glob(filepath.Join(r.dir, "staging/r/*/rank-0/*")); len(left) != 0 {
		t.Errorf("staged files stay after the upload: %v", left)
	}
	r.commit(manifest, digest, dir)
	verify := r.request("verify", 3, 3)
	verify.Dir, verify.Digest = dir, digest
	var path string
	for range 2 {
		before := r.proxy.Requests.Load()
		rep := r.do(verify)
		if rep.Error != "" || rep.Finding != "" {
			t.Fatalf("%+v", rep)
		}
		if path != "" && r.proxy.Requests.Load()-before > 1 { // the manifest alone
			t.Errorf("a step that is here was fetched again with %d requests", r.proxy.Requests.Load()-before)
		}
		path = rep.Path
	}
	got, err := os.ReadFile(filepath.Join(path, "rank-0/model.pt"))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("restored %d bytes: %v", len(got), err)
	}

	// A later restore removes this one first.
	manifest, digest, dir = r.save(4, 3, []byte("later"))
	r.commit(manifest, digest, dir)
	verify.Dir, verify.Digest, verify.Step = dir, digest, 4
	if rep := r.do(verify); rep.Error != "" || rep.Finding != "" {
		t.Fatalf("%+v", rep)
	}
	if left, _ := os.ReadDir(filepath.Join(r.dir, "restore")); len(left) != 1 {
		t.Errorf("%d steps are kept on the node", len(left))
	}

	// The wrong step, the wrong digest and damage are findings; a store that is away is none.
	wrong := *verify
	wrong.Run = "other"
	if rep := r.do(&wrong); rep.Finding == "" && rep.Error == "" {
		t.Error("the step of another run was restored")
	}
	wrong = *verify
	wrong.Digest = checkpoint.DigestBytes(nil)
	if rep := r.do(&wrong); !strings.Contains(rep.Finding, "was committed") {
		t.Errorf("another digest: %+v", rep)
	}
	stop := r.proxy.Inject(s3.Fault{Reset: true})
	if rep := r.do(verify); rep.Code != "io" || rep.Finding != "" {
		t.Errorf("a store that is away: %+v", rep)
	}
	stop()
	file := r.server.File("runs/r/step-4-g3-0123abcd/rank-0/model.pt")
	if err := os.WriteFile(file, []byte("l8ter"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "restore")); err != nil {
		t.Fatal(err)
	}
	if rep := r.do(verify); !strings.Contains(rep.Finding, "rank-0/model.pt: digest") {
		t.Errorf("damage: %+v", rep)
	}
}

// TestBucketFaults: nothing is prepared that the store does not keep, and a fault costs a
// step, not the files.
func TestBucketFaults(t *testing.T) {
	r := newRig(t)
	rep := r.do(r.request("begin", 3, 2))
	if err := os.WriteFile(filepath.Join(rep.Path, "m"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	req := r.request("prepare", 3, 2)
	req.Files = []shim.RankFile{{Path: "rank-0/m"}}
	for _, f := range []s3.Fault{
		{Method: "PUT", Status: 403, Code: "AccessDenied"}, {Method: "PUT", Spoil: true}, {Reset: true}, {Method: "HEAD", Status: 503, Code: "SlowDown"},
	} {
		stop := r.proxy.Inject(f)
		if rep := r.do(req); rep.Code != "io" || len(rep.Files) != 0 {
			t.Errorf("%+v: %+v", f, rep)
		}
		stop()
	}
	// The local disk is at fault.
	remove := r.fs.Inject(disk.Fault{Op: disk.OpRead, Path: "m", Err: syscall.EIO})
	if rep := r.do(req); rep.Code != "io" || len(rep.Files) != 0 {
		t.Errorf("EIO of the staging folder: %+v", rep)
	}
	remove()
	ctx, cancel := context.WithCancel(t.Context())
	stop := r.proxy.Inject(s3.Fault{Method: "PUT", Before: cancel, Reset: true})
	if rep := Do(ctx, r.fs, req); rep.Error == "" {
		t.Error("a saver that is ended has prepared a step")
	}
	stop()
	if rep := r.do(req); rep.Error != "" || len(rep.Files) != 1 {
		t.Errorf("again: %+v", rep)
	}
	for _, bad := range []string{"s3://", "s3://Bucket/x", "s3://bucket/../x", "s3://bucket/x?secret=y", "s3://bucket/x?endpoint=ftp://h", "s3://bucket/x?endpoint=http://user:pw@h"} {
		req := r.request("begin", 3, 2)
		req.Store = bad
		if rep := r.do(req); rep.Code != "usage" || strings.Contains(rep.Error, "pw") {
			t.Errorf("%s: %+v", bad, rep)
		}
	}
}

// TestPreflight: a step that does not fit is refused before its ranks write it.
func TestPreflight(t *testing.T) {
	fsys := disk.NewFaulty(disk.OS())
	req := shim.SaverRequest{Op: "begin", Store: t.TempDir(), Run: "r", Step: 3, Generation: 2, Life: "0123abcd", Rank: 77}
	left := func(n int) func() { return fsys.Inject(disk.Fault{Op: disk.OpSpace, Partial: n}) }
	stop := left(10)
	if rep := Do(t.Context(), fsys, &req); rep.Error != "" {
		t.Errorf("nobody knows yet what a step takes: %+v", rep)
	}
	stop()
	remember(&req, []shim.SavedFile{{Length: 40 << 20}})
	stop = left(20 << 20)
	rep := Do(t.Context(), fsys, &req)
	if rep.Code != "space" || !strings.Contains(rep.Error, "20.0 MiB left, the files of this rank took 40.0 MiB") {
		t.Errorf("%+v", rep)
	}
	stop()
	defer left(50 << 20)()
	if rep := Do(t.Context(), fsys, &req); rep.Error != "" {
		t.Errorf("%+v", rep)
	}
}
