package saver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// copyBlock fits a core's cache, so that what was read is still there to be written.
const copyBlock = 256 << 10

// stage carries an asynchronous save to the point where it is prepared: it makes the
// step's folders, writes what lies in the rank's buffer, and goes on as prepare does,
// with files that the rank wrote by itself too.
func stage(ctx context.Context, fsys checkpoint.FS, req *shim.SaverRequest, rep *shim.SaverReply) error {
	if err := begin(fsys, req, rep); err != nil {
		return err
	}
	if err := checkNames(req); err != nil {
		return err
	}
	dir := rep.Dir
	var buf io.ReaderAt
	for _, f := range req.Files {
		if !f.Staged {
			continue
		}
		if buf == nil {
			// Opened here, once a save: the shim keeps it, and nobody can exchange it.
			b, err := os.Open(req.Buffer)
			if err != nil {
				return fmt.Errorf("open the buffer of rank %d: %w", req.Rank, err)
			}
			defer b.Close()
			buf = b
		}
		if err := writeStaged(ctx, fsys, dir, f, buf); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, cause(err))
		}
	}
	return prepare(ctx, fsys, req, rep)
}

// cause leaves the path out, which is long and known: the reason of a dropped step is
// clipped for people.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// writeStaged makes one file out of the buffer. One that stands there is of an earlier
// try, since a step's folder has one generation and nothing of it is prepared yet.
func writeStaged(ctx context.Context, fsys checkpoint.FS, dir string, f shim.RankFile, buf io.ReaderAt) error {
	if err := folders(fsys, dir, path.Dir(f.Path)); err != nil {
		return err
	}
	name := path.Join(dir, f.Path)
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	block := make([]byte, min(copyBlock, max(f.Length, 1)))
	for at := int64(0); at < f.Length; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := buf.ReadAt(block[:min(int64(len(block)), f.Length-at)], f.Offset+at)
		if n == 0 {
			return fmt.Errorf("the buffer ends at byte %d of %d: %w", at, f.Length, err)
		}
		if _, err := out.Write(block[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return out.Close() // a network file system tells a full disk here
}

// folders makes the folders below a step's directory that a file lies in. A link in
// the place of one is refused.
func folders(fsys checkpoint.FS, dir, rel string) error {
	at := dir
	for part := range strings.SplitSeq(rel, "/") {
		at = path.Join(at, part)
		st, err := fsys.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err = fsys.MkdirAll(at, 0o755); err == nil {
				st, err = fsys.Lstat(at)
			}
		}
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return usage{fmt.Errorf("%s is no folder (%s): %w", at, st.Mode(), checkpoint.ErrUnsafe)}
		}
	}
	return nil
}
