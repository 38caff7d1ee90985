package saver

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

func TestServeAnswersEachRequest(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	var in, out bytes.Buffer
	enc := json.NewEncoder(&in)
	good := shim.SaverRequest{ID: 1, Op: "begin", Store: store, Run: "r", Step: 3, Generation: 2, Life: "0123abcd", Rank: 1}
	for i, change := range []func(*shim.SaverRequest){
		func(*shim.SaverRequest) {},
		func(r *shim.SaverRequest) { r.Run = "../r" },
		func(r *shim.SaverRequest) { r.Life = "x" },
		func(r *shim.SaverRequest) { r.Store = "relative" },
		func(r *shim.SaverRequest) { r.Step = -1 },
		func(r *shim.SaverRequest) { r.Op = "dance" },
	} {
		r := good
		r.ID = uint64(i + 1)
		change(&r)
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	// One at a time: Serve returns when its input ends, whatever still runs.
	got := map[uint64]shim.SaverReply{}
	for line := range strings.Lines(in.String()) {
		var req shim.SaverRequest
		if err := json.Unmarshal([]byte(line), &req); err != nil {
			t.Fatal(err)
		}
		rep := Do(context.Background(), checkpoint.OS(), &req)
		got[rep.ID] = *rep
	}
	if r := got[1]; r.Error != "" || r.Path != filepath.Join(store, "r", "step-3-g2-0123abcd", "rank-1") {
		t.Errorf("begin: %+v", r)
	}
	for id := uint64(2); id <= 6; id++ {
		if r := got[id]; r.Code != "usage" || r.Error == "" {
			t.Errorf("request %d: %+v", id, r)
		}
	}
	for _, bad := range []string{"nope\n", "[1]\n", strings.Repeat("x", maxLine+1)} {
		if err := Serve(strings.NewReader(bad), &out, checkpoint.OS()); err == nil {
			t.Errorf("%.10q was accepted", bad)
		}
	}
	if err := Serve(strings.NewReader(""), &out, checkpoint.OS()); err != nil {
		t.Error(err)
	}
}

// failing is a disk that fails in one operation.
type failing struct {
	checkpoint.FS
	err error
}

func (f failing) SyncDir(string) error { return f.err }

func (f failing) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	if strings.HasSuffix(name, "/m") {
		return nil, f.err
	}
	return f.FS.OpenFile(name, flag, perm)
}

func TestDiskErrorsAreNotTheRanksFault(t *testing.T) {
	for err, code := range map[error]string{unix.EIO: "io", unix.ENOSPC: "space", unix.EDQUOT: "space", fs.ErrPermission: "io"} {
		req := shim.SaverRequest{Op: "begin", Store: t.TempDir(), Run: "r", Step: 3, Generation: 2, Life: "0123abcd"}
		rep := Do(context.Background(), checkpoint.OS(), &req)
		if rep.Error != "" {
			t.Fatal(rep.Error)
		}
		if err := os.WriteFile(filepath.Join(rep.Path, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		req.Op, req.Files = "prepare", []shim.RankFile{{Path: "rank-0/f"}}
		rep = Do(context.Background(), failing{checkpoint.OS(), err}, &req)
		if rep.Code != code || len(rep.Files) != 0 {
			t.Errorf("%v: %+v, want code %s", err, rep, code)
		}
	}
}

// A store that cannot be read is no damage: a step is never rolled back for it.
func TestUnreadableIsNotDamaged(t *testing.T) {
	store := t.TempDir()
	begin := shim.SaverRequest{Op: "begin", Store: store, Run: "r", Step: 3, Generation: 2, Life: "0123abcd"}
	rep := Do(context.Background(), checkpoint.OS(), &begin)
	data := []byte("x")
	if err := os.WriteFile(filepath.Join(rep.Path, "m"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	prepare := begin
	prepare.Op, prepare.Files = "prepare", []shim.RankFile{{Path: "rank-0/m", Part: "model"}}
	rep = Do(context.Background(), checkpoint.OS(), &prepare)
	if rep.Error != "" || len(rep.Files) != 1 {
		t.Fatalf("%+v", rep)
	}
	manifest, digest := manifestOf(t, rep)
	if err := os.WriteFile(filepath.Join(rep.Dir, checkpoint.ManifestFile), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	verify := shim.SaverRequest{Op: "verify", Store: store, Run: "r", Step: 3, Dir: rep.Dir, Digest: digest, Shares: 1}
	if rep := Do(context.Background(), checkpoint.OS(), &verify); rep.Error != "" || rep.Finding != "" {
		t.Errorf("a whole step: %+v", rep)
	}
	if rep := Do(context.Background(), failing{checkpoint.OS(), unix.EIO}, &verify); rep.Code != "io" || rep.Finding != "" {
		t.Errorf("EIO: %+v", rep)
	}
	verify.Share = 1
	if rep := Do(context.Background(), checkpoint.OS(), &verify); rep.Error == "" || rep.Finding != "" {
		t.Errorf("share 1 of 1: %+v", rep)
	}
}

func manifestOf(t *testing.T, rep *shim.SaverReply) ([]byte, string) {
	t.Helper()
	p := wire.Prepared{Run: "r", Generation: 2, Step: 3, World: 1, Dir: rep.Dir}
	for _, f := range rep.Files {
		p.Files = append(p.Files, wire.PreparedFile{Path: f.Path, Length: f.Length, Digest: f.Digest, Part: f.Part})
	}
	b, digest, err := checkpoint.Build([]wire.Prepared{p}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, digest
}
