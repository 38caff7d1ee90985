package saver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// maxLine bounds one request; a rank's frame or a manifest, of which it is made, is
// smaller.
const maxLine = 4 << 20

// atOnce is how many requests run together: enough to keep a disk busy, few enough
// to leave the processors to the ranks.
const atOnce = 4

// Main serves requests on standard input until it ends, which is when the shim
// does. It returns the exit code.
func Main() int {
	if err := Serve(os.Stdin, os.Stdout, checkpoint.OS()); err != nil {
		fmt.Fprintf(os.Stderr, "troupe saver: %v\n", err)
		return 1
	}
	return 0
}

// Serve answers each line of in with one line on out, in any order, until in ends.
// Work that runs then is cut off.
func Serve(in io.Reader, out io.Writer, fsys checkpoint.FS) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	slots := make(chan struct{}, atOnce)
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		var req shim.SaverRequest
		if err := json.Unmarshal(sc.Bytes(), &req); err != nil {
			return fmt.Errorf("malformed request: %w", err)
		}
		slots <- struct{}{}
		go func() {
			rep := Do(ctx, fsys, &req)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			_ = enc.Encode(rep) // without a shim nobody waits for it
		}()
	}
	return sc.Err()
}

// Do carries out one request.
func Do(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest) *shim.SaverReply {
	rep := &shim.SaverReply{ID: req.ID}
	var err error
	switch req.Op {
	case "begin":
		err = begin(fsys, req, rep)
	case "prepare":
		err = prepare(ctx, fsys, req, rep)
	case "stage":
		err = stage(ctx, fsys, req, rep)
	case "verify":
		err = verify(ctx, fsys, req, rep)
	case "task":
		err = task(ctx, fsys, req, rep)
	default:
		err = usage{fmt.Errorf("unknown request %q", req.Op)}
	}
	if err != nil {
		rep.Error, rep.Code = err.Error(), codeOf(err)
	}
	return rep
}

// task carries out what an agent would, were there one. Do admits only directories of the
// run below the store that the task names, reached through no link.
func task(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	if req.Task == nil {
		return usage{errors.New("a task without its text")}
	}
	reply := checkpoint.Do(ctx, stores.Open, fsys, *req.Task, time.Now())
	rep.Task = &reply
	return nil
}

// usage marks what the rank did wrong, as opposed to what a disk did.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func codeOf(err error) string {
	var u usage
	switch {
	case errors.As(err, &u), errors.Is(err, checkpoint.ErrName), errors.Is(err, checkpoint.ErrUnsafe):
		return "usage"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, checkpoint.ErrSpace):
		return "space"
	}
	return "io"
}

// stepDir is the directory that ranks write to, after every name in it was checked.
func stepDir(req *shim.SaverRequest) (string, error) {
	if req.Step < 0 || req.Rank < 0 {
		return "", usage{fmt.Errorf("step %d of rank %d", req.Step, req.Rank)}
	}
	dir := checkpoint.StepDir(localStore(req), req.Run, nameOf(req))
	if _, err := checkpoint.ValidDir(localStore(req), req.Run, dir); err != nil {
		return "", err
	}
	return dir, nil
}

func nameOf(req *shim.SaverRequest) checkpoint.StepName {
	return checkpoint.StepName{Step: req.Step, Generation: req.Generation, Life: req.Life}
}

// begin makes the step's folders. What stands in the place of one and is no folder
// of its own, a link above all, is refused: files would land elsewhere.
func begin(fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	dir, err := stepDir(req)
	if err != nil {
		return err
	}
	if _, err := checkpoint.ParseStore(req.Store); err != nil {
		return err
	}
	if checkpoint.Remote(req.Store) {
		clearStaging(fsys, req)
	}
	if err := preflight(fsys, req); err != nil {
		return err
	}
	if err := fsys.MkdirAll(localStore(req), 0o755); err != nil {
		return fmt.Errorf("checkpoint store: %w", err)
	}
	rep.Dir, rep.Path, rep.Shared = dir, path.Join(dir, checkpoint.RankDir(req.Rank)), path.Join(dir, checkpoint.SharedDir)
	for _, d := range []string{path.Dir(dir), dir, rep.Path, rep.Shared} {
		st, err := fsys.Lstat(d)
		if errors.Is(err, fs.ErrNotExist) {
			if err = fsys.MkdirAll(d, 0o755); err == nil {
				st, err = fsys.Lstat(d)
			}
		}
		if err != nil {
			return fmt.Errorf("make folder of the step: %w", err)
		}
		if !st.IsDir() {
			return usage{fmt.Errorf("%s is no folder (%s): %w", d, st.Mode(), checkpoint.ErrUnsafe)}
		}
	}
	return nil
}

// checkNames refuses files that the rank may not name, or names twice.
func checkNames(req *shim.SaverRequest) error {
	seen := map[string]bool{}
	for _, f := range req.Files {
		if err := checkpoint.ValidFile(f.Path, req.Rank); err != nil {
			return err
		}
		if seen[f.Path] {
			return usage{fmt.Errorf("file %q is named twice", f.Path)}
		}
		seen[f.Path] = true
	}
	return nil
}

// prepare makes the named files durable, then reads them again: what is hashed is
// what a restore will find.
func prepare(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	dir, err := stepDir(req)
	if err != nil {
		return err
	}
	rep.Dir = dir
	if err := checkNames(req); err != nil {
		return err
	}
	own, shared := path.Join(dir, checkpoint.RankDir(req.Rank)), false
	for _, f := range req.Files {
		shared = shared || strings.HasPrefix(f.Path, checkpoint.SharedDir+"/")
		if err := realPath(fsys, dir, f.Path); err != nil {
			return err
		}
	}
	if checkpoint.Remote(req.Store) {
		return upload(ctx, fsys, req, rep)
	}
	if err := checkpoint.SyncTree(ctx, fsys, req.Store, own); err != nil {
		return err
	}
	if shared {
		if err := checkpoint.SyncTree(ctx, fsys, req.Store, path.Join(dir, checkpoint.SharedDir)); err != nil {
			return err
		}
	}
	from := time.Now()
	defer func() { rep.HashNS = time.Since(from).Nanoseconds() }()
	for _, f := range req.Files {
		digest, length, err := checkpoint.HashFile(ctx, fsys, path.Join(dir, f.Path))
		if err != nil {
			return fmt.Errorf("prepare %s: %w", f.Path, err)
		}
		part := f.Part
		if part == "" {
			part = "other"
		}
		rep.Files = append(rep.Files, shim.SavedFile{Path: f.Path, Part: part, Length: length, Digest: digest})
	}
	remember(req, rep.Files)
	return nil
}

// realPath refuses a file that is reached through a link, since a sync of the
// step's folders would not cover it and a restore would refuse it.
func realPath(fsys checkpoint.FS, dir, rel string) error {
	parts := strings.Split(rel, "/")
	for i := range parts {
		st, err := fsys.Lstat(path.Join(dir, path.Join(parts[:i+1]...)))
		if errors.Is(err, fs.ErrNotExist) {
			return usage{fmt.Errorf("file %q was named but does not exist", rel)}
		}
		if err != nil {
			return err
		}
		if last := i == len(parts)-1; last && !st.Mode().IsRegular() || !last && !st.IsDir() {
			return usage{fmt.Errorf("file %q: %s is neither file nor folder: %w", rel, parts[i], checkpoint.ErrUnsafe)}
		}
	}
	return nil
}

// verify compares this node's share with the manifest, and the manifest with the
// digest in the log first. Only what proves damage becomes a finding: a store that
// cannot be read says nothing about the step.
func verify(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	if checkpoint.Remote(req.Dir) {
		return fetch(ctx, fsys, req, rep)
	}
	m, digest, err := checkpoint.ReadManifest(fsys, req.Dir)
	switch {
	case errors.Is(err, checkpoint.ErrManifest):
		rep.Finding = checkpoint.ManifestFile + ": " + err.Error()
		return nil
	case (errors.Is(err, checkpoint.ErrNoManifest) || errors.Is(err, fs.ErrNotExist)) && mounted(fsys, req.Dir):
		rep.Finding = checkpoint.ManifestFile + ": missing, while the store can be seen"
		return nil
	case errors.Is(err, checkpoint.ErrUnsafe):
		rep.Finding = err.Error()
		return nil
	case err != nil:
		return err
	case digest != req.Digest:
		rep.Finding = fmt.Sprintf("%s: xxh3-128 is %s, %s was committed", checkpoint.ManifestFile, digest, req.Digest)
		return nil
	case m.Run != req.Run || m.Step != req.Step:
		rep.Finding = fmt.Sprintf("%s: it is of run %s, step %d", checkpoint.ManifestFile, m.Run, m.Step)
		return nil
	}
	rememberAll(m)
	v, err := checkpoint.VerifyShare(ctx, fsys, req.Dir, m, int(req.Share), int(req.Shares))
	if err != nil {
		return err
	}
	return judge(v, rep)
}

// judge tells what a verification found: damage is a finding, and what could not be read
// is an error that says nothing about the step.
func judge(v checkpoint.Verification, rep *shim.SaverReply) error {
	if bad := v.Damaged(); len(bad) > 0 {
		rep.Finding = bad[0].String()
		return nil
	}
	if bad := v.Unreadable(); len(bad) > 0 {
		return errors.New(bad[0].String())
	}
	return nil
}

// mounted reports whether the store can be seen although a step's manifest cannot: the
// run's folder is there. An unmounted store shows an empty folder, or none.
func mounted(fsys checkpoint.FS, dir string) bool {
	st, err := fsys.Lstat(path.Dir(dir))
	return err == nil && st.IsDir()
}
