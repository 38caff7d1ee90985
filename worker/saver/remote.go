package saver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/elastic/checkpoint/store"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// A store that ranks cannot write to. They write below a folder of their allocation; what
// they name is uploaded from there, and what they restore is downloaded beside it.

// stores keeps the connections of this process.
var stores = store.New(checkpoint.OS(), "saver")

// localStore is where ranks write: the store itself, or the allocation's staging folder,
// which has the same layout.
func localStore(req *shim.SaverRequest) string {
	if checkpoint.Remote(req.Store) {
		return req.Staging
	}
	return req.Store
}

// bucket opens the remote store of a request.
func bucket(ctx context.Context, req *shim.SaverRequest) (checkpoint.Uploader, error) {
	s, err := stores.Open(ctx, req.Store)
	if err != nil {
		return nil, err
	}
	up, ok := s.(checkpoint.Uploader)
	if !ok {
		return nil, usage{fmt.Errorf("store %q takes no uploads", req.Store)}
	}
	return up, nil
}

// upload sends the files that a rank has named and answers when the store has confirmed
// each of them. What was sent is removed here: a later try would find it in the store.
func upload(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	local := checkpoint.StepDir(localStore(req), req.Run, nameOf(req))
	rep.Dir = checkpoint.StepDir(req.Store, req.Run, nameOf(req))
	if _, err := checkpoint.ValidDir(req.Store, req.Run, rep.Dir); err != nil {
		return err
	}
	up, err := bucket(ctx, req)
	if err != nil {
		return err
	}
	files := make([]shim.SavedFile, len(req.Files))
	errs := make([]error, len(req.Files))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, f := range req.Files {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			digest, length, err := up.Upload(ctx, req.Run, rep.Dir, f.Path, fsys, path.Join(local, f.Path))
			if err != nil {
				errs[i] = fmt.Errorf("upload %s: %w", f.Path, err)
				return
			}
			part := f.Part
			if part == "" {
				part = "other"
			}
			files[i] = shim.SavedFile{Path: f.Path, Part: part, Length: length, Digest: digest}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	rep.Files = files
	remember(req, files)
	for _, f := range req.Files {
		_ = fsys.Remove(path.Join(local, f.Path)) // only space: the allocation's end removes it too
	}
	_ = fsys.RemoveAll(path.Join(local, checkpoint.RankDir(req.Rank)))
	return nil
}

// clearStaging removes what the rank left of earlier steps that it gave up, and what older
// generations left. That is space; what cannot be removed goes with the allocation.
func clearStaging(fsys checkpoint.FS, req *shim.SaverRequest) {
	folder := path.Join(req.Staging, req.Run)
	entries, err := fsys.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		n, err := checkpoint.ParseStepName(e.Name())
		switch {
		case err != nil || n == nameOf(req):
		case n.Generation < req.Generation:
			_ = fsys.RemoveAll(path.Join(folder, e.Name()))
		default:
			_ = fsys.RemoveAll(path.Join(folder, e.Name(), checkpoint.RankDir(req.Rank)))
		}
	}
}

// fetch downloads the step to the allocation, each file once for all ranks here, and
// compares it on the way. Ranks read any file of a step, their own or another's, so a
// node fetches all of them.
func fetch(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	s, err := stores.Open(ctx, req.Store)
	if err != nil {
		return err
	}
	m, data, err := s.Manifest(ctx, req.Run, req.Dir)
	switch {
	case errors.Is(err, checkpoint.ErrManifest):
		rep.Finding = checkpoint.ManifestFile + ": " + err.Error()
		return nil
	case errors.Is(err, checkpoint.ErrNoManifest):
		rep.Finding = checkpoint.ManifestFile + ": missing, while the store can be seen"
		return nil
	case err != nil:
		return err
	case checkpoint.DigestBytes(data) != req.Digest:
		rep.Finding = fmt.Sprintf("%s: xxh3-128 is %s, %s was committed", checkpoint.ManifestFile, checkpoint.DigestBytes(data), req.Digest)
		return nil
	case m.Run != req.Run || m.Step != req.Step:
		rep.Finding = fmt.Sprintf("%s: it is of run %s, step %d", checkpoint.ManifestFile, m.Run, m.Step)
		return nil
	}
	rememberAll(m)
	name := path.Base(req.Dir)
	if err := onlyOne(fsys, req.Restore, name); err != nil {
		return err
	}
	folder := path.Join(req.Restore, name)
	if err := checkpoint.Preflight(fsys, req.Restore, m.Bytes, int64(len(m.Files))); err != nil {
		if held, _ := fsys.ReadDir(folder); len(held) == 0 { // part of it may be here already
			return err
		}
	}
	if err := fsys.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	v, err := checkpoint.Fetch(ctx, s, req.Run, req.Dir, m, fsys, folder)
	if err != nil {
		return err
	}
	if err := judge(v, rep); err != nil || rep.Finding != "" {
		return err
	}
	// Ranks look there for what is told of the step beside its files.
	if err := disk.WriteFileAtomic(fsys, path.Join(folder, checkpoint.ManifestFile), data, 0o644); err != nil {
		return err
	}
	rep.Path = folder
	return nil
}

// onlyOne removes what earlier attempts fetched, before the disk holds two steps.
func onlyOne(fsys checkpoint.FS, folder, name string) error {
	entries, err := fsys.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != name {
			if err := fsys.RemoveAll(path.Join(folder, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
