package saver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// stagedIn is a request whose file lies in the middle of a buffer.
func stagedIn(t *testing.T, req *shim.SaverRequest, data []byte) {
	t.Helper()
	req.Op, req.Buffer = "stage", filepath.Join(t.TempDir(), "buffer")
	if err := os.WriteFile(req.Buffer, bytes.Join([][]byte{[]byte("before"), data, []byte("after")}, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	req.Files = []shim.RankFile{{Path: "rank-0/deep/model.pt", Part: "model", Staged: true, Offset: 6, Length: int64(len(data))}}
}

func TestStage(t *testing.T) {
	data := bytes.Repeat([]byte("weights "), copyBlock/4)
	req := shim.SaverRequest{Store: t.TempDir(), Run: "r", Step: 3, Generation: 2, Life: "0123abcd"}
	stagedIn(t, &req, data)
	var dir string
	for range 2 { // the second as after the death of a saver: it finds what the first one left
		rep := Do(context.Background(), checkpoint.OS(), &req)
		if rep.Error != "" || len(rep.Files) != 1 || rep.Files[0].Digest != checkpoint.DigestBytes(data) || rep.HashNS <= 0 {
			t.Fatalf("%+v", rep)
		}
		dir = rep.Dir
	}
	if got, err := os.ReadFile(filepath.Join(dir, "rank-0/deep/model.pt")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}

	for name, change := range map[string]func(r *shim.SaverRequest){
		"another rank's":   func(r *shim.SaverRequest) { r.Files[0].Path = "rank-1/m" },
		"outside":          func(r *shim.SaverRequest) { r.Files[0].Path = "../m" },
		"twice":            func(r *shim.SaverRequest) { r.Files = append(r.Files, r.Files[0]) },
		"behind its end":   func(r *shim.SaverRequest) { r.Files[0].Length += 1 << 20 },
		"no buffer":        func(r *shim.SaverRequest) { r.Buffer += "x" },
		"never written":    func(r *shim.SaverRequest) { r.Files = append(r.Files, shim.RankFile{Path: "rank-0/x"}) },
		"a link":           func(r *shim.SaverRequest) { r.Files[0].Path = "rank-0/link/m" },
		"no step":          func(r *shim.SaverRequest) { r.Step = -1 },
		"a folder instead": func(r *shim.SaverRequest) { r.Files[0].Path = "rank-0/full" },
	} {
		bad := req
		stagedIn(t, &bad, data)
		change(&bad)
		os.Remove(filepath.Join(dir, "rank-0/link"))
		if err := os.Symlink("/tmp", filepath.Join(dir, "rank-0/link")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "rank-0/full/x"), 0o700); err != nil {
			t.Fatal(err)
		}
		if rep := Do(context.Background(), checkpoint.OS(), &bad); rep.Error == "" || len(rep.Files) != 0 {
			t.Errorf("%s: %+v", name, rep)
		}
	}
}

// full is a disk on which files can be made and not filled.
type full struct{ checkpoint.FS }

type fullFile struct{ disk.File }

func (fullFile) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func (f full) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err == nil && flag&os.O_WRONLY != 0 {
		return fullFile{file}, nil
	}
	return file, err
}

func TestStageOntoAFullDisk(t *testing.T) {
	req := shim.SaverRequest{Store: t.TempDir(), Run: "r", Step: 3, Generation: 2, Life: "0123abcd"}
	stagedIn(t, &req, []byte("weights"))
	rep := Do(context.Background(), full{checkpoint.OS()}, &req)
	if rep.Code != "space" || !strings.HasPrefix(rep.Error, "write rank-0/deep/model.pt: no space") {
		t.Errorf("%+v", rep)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("the shim has gone"))
	if rep := Do(ctx, checkpoint.OS(), &req); rep.Error == "" {
		t.Errorf("%+v", rep)
	}
}

func TestStageIntoABucket(t *testing.T) {
	r := newRig(t)
	data := []byte("weights")
	req := r.request("stage", 3, 2)
	stagedIn(t, req, data)
	rep := r.do(req)
	if rep.Error != "" || !checkpoint.Remote(rep.Dir) || len(rep.Files) != 1 || rep.Files[0].Digest != checkpoint.DigestBytes(data) {
		t.Fatalf("%+v", rep)
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, "staging/r/*/rank-0/*")); len(left) != 0 {
		t.Errorf("staged files stay after the upload: %v", left)
	}
}
