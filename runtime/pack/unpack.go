package pack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Limits bound what an archive may unpack to; zero values are MaxBytes and MaxEntries.
type Limits struct {
	Bytes   int64
	Entries int
}

// header is what an entry costs in the tar at most, names of full length included.
const header = 16 << 10

// Unpack makes the folder dir, which must not be there, of an archive. It trusts nothing:
// what it refuses wraps ErrEntry, ErrLimit or ErrDamaged and names the entry and the limit.
// After any error dir is not there.
//
// It works on the operating system's files and not through runtime/disk: what keeps an
// archive inside its folder is that every name is opened below a descriptor of it.
func Unpack(ctx context.Context, r io.Reader, dir string, l Limits) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(2*windowSize))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer z.Close()
	return unpackTar(ctx, z, dir, l)
}

func unpackTar(ctx context.Context, r io.Reader, dir string, l Limits) (err error) {
	if l.Bytes <= 0 {
		l.Bytes = MaxBytes
	}
	if l.Entries <= 0 {
		l.Entries = MaxEntries
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder to unpack into: %w", err)
	}
	defer func() {
		if err != nil {
			if left := os.RemoveAll(dir); left != nil {
				err = fmt.Errorf("%w; and what was unpacked could not be removed: %w", err, left)
			}
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the folder to unpack into: %w", err)
	}
	defer root.Close()
	u := unpacker{root: root, names: newNames(), limits: l}
	in := &bounded{r: r, left: l.Bytes + int64(l.Entries+1)*header, limit: l.Bytes}
	t := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged("", err)
		}
		if err := u.entry(ctx, h, t); err != nil {
			return err
		}
	}
	if err := onlyZeros(in); err != nil {
		return err
	}
	// Last, so that nothing is created through one of them.
	for _, l := range u.links {
		if err := root.Symlink(l.target, l.name); err != nil {
			return fmt.Errorf("unpack %s: %w", l.name, err)
		}
	}
	return nil
}

type unpacker struct {
	root   *os.Root
	names  *names
	limits Limits
	bytes  int64
	links  []entry
}

func (u *unpacker) entry(ctx context.Context, h *tar.Header, content io.Reader) error {
	k, err := kindOf(h)
	if err != nil {
		return err
	}
	name := h.Name
	if k == folder {
		name = strings.TrimSuffix(name, "/")
	}
	if len(u.names.kinds) >= u.limits.Entries {
		return over("more than %d files, folders and links", u.limits.Entries)
	}
	if err := u.names.add(name, k); err != nil {
		return err
	}
	switch k {
	case folder:
		if err := u.root.Mkdir(name, 0o755); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	case link:
		if err := checkLink(name, h.Linkname); err != nil {
			return err
		}
		u.links = append(u.links, entry{name: name, target: h.Linkname})
	case file:
		if h.Size < 0 || h.Size > u.limits.Bytes-u.bytes {
			return over("%q would bring what is unpacked above %s", clip(name), sizeText(u.limits.Bytes))
		}
		u.bytes += h.Size
		return u.file(ctx, name, h, content)
	}
	return nil
}

// kindOf admits folders, plain files and links; everything that can mean something else to
// another reader of archives is refused.
func kindOf(h *tar.Header) (kind, error) {
	for k := range h.PAXRecords {
		if k != "path" && k != "linkpath" && k != "size" {
			return 0, refuse(h.Name, "carries the record %q", clip(k))
		}
	}
	if h.Mode&^0o777 != 0 {
		return 0, refuse(h.Name, "has the mode %#o: setuid, setgid and sticky bits are not taken", h.Mode)
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if strings.HasSuffix(h.Name, "/") {
			return 0, refuse(h.Name, "is a file with the name of a folder")
		}
		return file, nil
	case tar.TypeDir, tar.TypeSymlink:
		if h.Size != 0 {
			return 0, refuse(h.Name, "is no file and says that it has %d bytes", h.Size)
		}
		if h.Typeflag == tar.TypeDir {
			return folder, nil
		}
		return link, nil
	case tar.TypeLink:
		return 0, refuse(h.Name, "is a hard link")
	case tar.TypeChar, tar.TypeBlock:
		return 0, refuse(h.Name, "is a device")
	case tar.TypeFifo:
		return 0, refuse(h.Name, "is a pipe")
	}
	return 0, refuse(h.Name, "is of the unknown kind %q", string(rune(h.Typeflag)))
}

func (u *unpacker) file(ctx context.Context, name string, h *tar.Header, content io.Reader) error {
	mode := fs.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", name, err)
	}
	n, err := io.Copy(f, &cancelable{ctx, content})
	if closeErr := f.Close(); err == nil && closeErr != nil {
		return fmt.Errorf("unpack %s: %w", name, closeErr)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && writeFailed(err):
		return fmt.Errorf("unpack %s: %w", name, err)
	case err != nil:
		return damaged(name, err)
	case n != h.Size:
		return fmt.Errorf("%q says that it has %d bytes and has %d: %w", clip(name), h.Size, n, ErrDamaged)
	}
	return nil
}

// writeFailed tells an error of this machine's disk from one of the archive.
func writeFailed(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

func damaged(name string, err error) error {
	if errors.Is(err, ErrLimit) {
		return err
	}
	if writeFailed(err) {
		return fmt.Errorf("read the package: %w", err)
	}
	if name != "" {
		return fmt.Errorf("%w: at %q: %w", ErrDamaged, clip(name), err)
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// onlyZeros reads what follows the end of a tar, which is padding.
func onlyZeros(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return fmt.Errorf("%w: something follows its end", ErrDamaged)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged("", err)
		}
	}
}

// bounded ends a stream that unpacks to more than all entries could need.
type bounded struct {
	r           io.Reader
	left, limit int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, over("the package unpacks to more than %s", sizeText(b.limit))
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

type cancelable struct {
	ctx context.Context //nolint:containedctx // of one copy
	r   io.Reader
}

func (c *cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
