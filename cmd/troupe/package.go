package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/pack"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

const workingDirUsage = "`folder`: send it along; each node runs the ranks in a copy of its own, and what " + pack.IgnoreFile + " in it names stays here"

// sizeFlag is a flag in bytes, as 500MiB.
type sizeFlag unit.Bytes

func (f *sizeFlag) Set(s string) error {
	b, err := unit.ParseBytes(s)
	if err != nil {
		return err
	}
	if b < 1 {
		return errors.New("at least 1 byte") // how much at most is said by whoever packs
	}
	*f = sizeFlag(b)
	return nil
}

func (f *sizeFlag) String() string {
	if *f == 0 {
		return bytesText(pack.DefaultLimit)
	}
	return bytesText(int64(*f))
}

func (f *sizeFlag) Type() string { return "size" }

// packed is a folder that was packed to be sent.
type packed struct {
	*pack.Folder
	pack.Sum
	file *os.File // the archive, which has no name any more
}

func (p *packed) close() {
	if p != nil {
		_ = p.file.Close()
	}
}

// packFolder packs a folder and says what is in it.
func (a *app) packFolder(ctx context.Context, dir string, limit sizeFlag) (*packed, error) {
	f, err := pack.Scan(ctx, dir, int64(limit))
	if err != nil {
		return nil, packProblem(err)
	}
	tmp, err := os.CreateTemp("", "troupe-package-")
	if err != nil {
		return nil, fmt.Errorf("make a file for the package: %w", err)
	}
	_ = os.Remove(tmp.Name()) // it goes with this process
	p := &packed{Folder: f, file: tmp}
	if p.Sum, err = f.Write(ctx, tmp); err != nil {
		p.close()
		return nil, packProblem(err)
	}
	a.note("packed %s: %s, %s (%s to send), package %.12s", dir, plural(int64(f.Files), "file"), bytesText(f.Bytes), bytesText(p.Size), p.Hash)
	if len(f.Left) > 0 {
		a.note("not packed: %s, which are no files, folders or links", strings.Join(f.Left, ", "))
	}
	return p, nil
}

// packProblem gives an error of packing its code and what to do.
func packProblem(err error) error {
	const leave = "leave it out with a line in " + pack.IgnoreFile
	switch {
	case errors.Is(err, pack.ErrLimit):
		return fail(api.ExitBadInput, "TRP-C065", leave+", put data where all nodes see it, or raise --working-dir-limit", "%v", err)
	case errors.Is(err, pack.ErrEntry):
		return fail(api.ExitBadInput, "TRP-C065", leave+", or replace it by a copy", "%v", err)
	case errors.Is(err, pack.ErrRule):
		return fail(api.ExitBadInput, "TRP-C065", "mend the line", "%v", err)
	case errors.Is(err, pack.ErrChanged):
		return fail(api.ExitConflict, "TRP-C073", "", "%v", err)
	}
	return err
}

// send sends the package unless the cluster has it.
func (a *app) send(ctx context.Context, cl *troupe.Client, p *packed) error {
	sent, err := cl.PutPackage(ctx, p.Hash, p.Size, func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(p.file, 0, p.Size)), nil
	})
	if err == nil && !sent {
		a.note("the cluster has this package already")
	}
	return err
}

// submit sends the job's package, if it has one, and submits the job. A head that had to
// make room in between gets the package once more.
func (a *app) submit(ctx context.Context, cl *troupe.Client, s api.JobSpec, p *packed, key string) (api.Job, error) {
	defer p.close()
	for again := true; ; again = false {
		if p != nil {
			if err := a.send(ctx, cl, p); err != nil {
				return api.Job{}, err
			}
		}
		j, err := cl.SubmitJob(ctx, s, key)
		if q := troupe.AsProblem(err); p != nil && again && q != nil && q.Code == "TRP-P404" {
			continue
		}
		return j, err
	}
}

// usePackage makes a spec one of a job that runs in a package. folder, relative to the
// root, is where ranks start.
func (a *app) usePackage(s *api.JobSpec, p *packed, folder string, wrap, command []string) error {
	if folder != "" && !filepath.IsLocal(folder) {
		return usage("%q is not below the folder that is sent; with --working-dir, --workdir is relative to it", folder)
	}
	s.Package, s.WorkingDir = p.Hash, filepath.ToSlash(folder)
	if folder != "" && !p.Holds(s.WorkingDir) {
		return missing("check the path and "+pack.IgnoreFile, "no folder %s in the package of %s", folder, p.Dir)
	}
	first := command
	if len(wrap) > 0 {
		return nil // what stands in front says what it finds
	}
	if len(first) == 0 {
		return nil
	}
	for _, path := range []string{first[0], scriptOf(first)} {
		if path == "" || filepath.IsAbs(path) || path == first[0] && !strings.ContainsRune(path, '/') {
			continue
		}
		if at := filepath.ToSlash(filepath.Join(folder, path)); !filepath.IsLocal(at) || !p.Holds(at) {
			return missing("check the path, and whether "+pack.IgnoreFile+" leaves it out", "no %s in the package of %s", at, p.Dir)
		}
	}
	return nil
}
