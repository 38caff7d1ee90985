package checkpoint

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	"github.com/zeebo/xxh3"
)

const (
	digestDigits = 32
	bufferSize   = 1 << 20
	smallFile    = 32 << 10 // not worth a MiB
)

// buffers are shared: a saver hashes many files and each would otherwise cost a MiB.
var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// DigestBytes is the hex xxh3-128 of data, 32 digits.
func DigestBytes(data []byte) string {
	sum := xxh3.Hash128(data).Bytes()
	return hex.EncodeToString(sum[:])
}

func hexOf(sum [16]byte) string { return hex.EncodeToString(sum[:]) }

func validDigest(s string) bool { return len(s) == digestDigits && lowerHex(s) }

// HashFile reads the file at path from the disk and returns its hex xxh3-128 and its
// length in bytes. A symbolic link or anything else that is not a regular file is an
// error, as is a file that changes its length while it is read. ctx ends it between
// two blocks.
func HashFile(ctx context.Context, fsys FS, path string) (digest string, length int64, err error) {
	f, size, err := OpenRegular(fsys, path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	digest, length, err = HashReader(ctx, f, size)
	if err != nil {
		return "", 0, fmt.Errorf("read %s: %w", path, err)
	}
	if length != size {
		return "", 0, fmt.Errorf("%s had %d bytes when opened and %d when read: something still writes to it", path, size, length)
	}
	return digest, length, nil
}

// HashReader returns the hex xxh3-128 of all of r and its length in bytes; size is what
// it is expected to hold and only chooses the buffer.
func HashReader(ctx context.Context, r io.Reader, size int64) (string, int64, error) {
	h := xxh3.New128()
	var buf []byte
	if size < smallFile {
		buf = make([]byte, size+1) // and one, so that the next read finds the end or more
	} else {
		shared := buffers.Get().(*[]byte)
		defer buffers.Put(shared)
		buf = *shared
	}
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := r.Read(buf)
		total += int64(n)
		_, _ = h.Write(buf[:n]) // a hash never fails
		if err == io.EOF {
			sum := h.Sum128().Bytes()
			return hex.EncodeToString(sum[:]), total, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}
