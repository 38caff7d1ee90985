package pack

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/klauspost/compress/zstd"
)

// windowSize bounds what a reader must keep of the archive to unpack it.
const windowSize = 4 << 20

// Write writes the archive. Equal names, contents and execute bits give equal bytes: there
// is no time, no owner and one order in it. It wraps ErrChanged if a file is not what Scan
// saw.
func (f *Folder) Write(ctx context.Context, w io.Writer) (Sum, error) {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return Sum{}, fmt.Errorf("open the folder: %w", err)
	}
	defer root.Close()
	h := sha256.New()
	n := counter{w: io.MultiWriter(h, w)}
	// One goroutine: where blocks end must not depend on who is faster.
	z, err := zstd.NewWriter(&n, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowSize), zstd.WithEncoderCRC(true))
	if err != nil {
		return Sum{}, fmt.Errorf("compress: %w", err)
	}
	t := tar.NewWriter(z)
	for _, e := range f.entries {
		if err := ctx.Err(); err != nil {
			return Sum{}, err
		}
		if err := e.write(t, root); err != nil {
			return Sum{}, err
		}
	}
	if err := t.Close(); err != nil {
		return Sum{}, fmt.Errorf("write the archive: %w", err)
	}
	if err := z.Close(); err != nil {
		return Sum{}, fmt.Errorf("write the archive: %w", err)
	}
	if n.n > MaxArchive {
		return Sum{}, over("the package of %s has %s; at most %s are taken", f.Dir, sizeText(n.n), sizeText(MaxArchive))
	}
	return Sum{Hash: hex.EncodeToString(h.Sum(nil)), Size: n.n}, nil
}

func (e *entry) write(t *tar.Writer, root *os.Root) error {
	h := &tar.Header{Name: e.name, Mode: 0o644}
	switch e.kind {
	case folder:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.name+"/", 0o755
	case link:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.target, 0o777
	case file:
		h.Typeflag, h.Size = tar.TypeReg, e.size
		if e.exec {
			h.Mode = 0o755
		}
	}
	if err := t.WriteHeader(h); err != nil {
		return fmt.Errorf("pack %s: %w", e.name, err)
	}
	if e.kind != file {
		return nil
	}
	r, err := root.OpenFile(e.name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("pack %s: %w", e.name, err)
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return fmt.Errorf("pack %s: %w", e.name, err)
	}
	if !st.Mode().IsRegular() || st.Size() != e.size {
		return changed(e.name)
	}
	n, err := io.Copy(t, io.LimitReader(r, e.size))
	if err != nil {
		return fmt.Errorf("pack %s: %w", e.name, err)
	}
	if n != e.size {
		return changed(e.name)
	}
	return nil
}

func changed(name string) error {
	return fmt.Errorf("%w: %s is not what it was a moment ago; try again when nothing writes there, or leave it out in %s", ErrChanged, name, IgnoreFile)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
