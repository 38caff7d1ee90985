package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/zeebo/xxh3"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
)

const (
	writePart = 16 << 20
	maxParts  = 10_000 // of one upload, by the protocol
	abortFor  = 10 * time.Second
)

var writeBuffers = sync.Pool{New: func() any { b := make([]byte, writePart); return &b }}

// Upload implements checkpoint.Uploader. The file is read once: what is hashed is what is
// sent.
func (b *Bucket) Upload(ctx context.Context, run, dir, file string, fsys checkpoint.FS, local string) (string, int64, error) {
	if _, err := checkpoint.ValidDir(b.address, run, dir); err != nil {
		return "", 0, err
	}
	f, size, err := checkpoint.OpenRegular(fsys, local)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	key := b.key(dir, file)
	u := &upload{b: b, key: key, f: f, h: xxh3.New128()}
	if size <= b.part {
		err = u.whole(ctx, size)
	} else {
		err = u.split(ctx, size)
	}
	if err != nil {
		return "", 0, err
	}
	sum := u.h.Sum128().Bytes()
	digest := hex.EncodeToString(sum[:])
	return digest, size, u.confirm(ctx, digest, size)
}

// upload is one file on its way.
type upload struct {
	b   *Bucket
	key string
	f   disk.File
	h   *xxh3.Hasher128
	crc string // as the store is to give it back
}

// read fills p with the next bytes of the file and hashes them.
func (u *upload) read(p []byte) error {
	if _, err := io.ReadFull(u.f, p); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it became shorter while it was read: something still writes to it")
		}
		return fmt.Errorf("read %s: %w", u.f.Name(), err)
	}
	_, _ = u.h.Write(p)
	return nil
}

// end checks that nothing follows what was read.
func (u *upload) end() error {
	var more [1]byte
	if n, err := u.f.Read(more[:]); n > 0 {
		return fmt.Errorf("read %s: it became longer while it was read: something still writes to it", u.f.Name())
	} else if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", u.f.Name(), err)
	}
	return nil
}

func (u *upload) whole(ctx context.Context, size int64) error {
	if err := u.b.parts.hold(ctx, 1); err != nil {
		return err
	}
	defer u.b.parts.free(1)
	buf := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(buf)
	data := (*buf)[:size]
	if err := u.read(data); err != nil {
		return err
	}
	if err := u.end(); err != nil {
		return err
	}
	u.crc = crcText(crc32.Checksum(data, castagnoli))
	_, err := u.b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &u.b.at.Bucket, Key: &u.key, Body: bytes.NewReader(data), ContentLength: &size, ChecksumCRC32C: &u.crc,
	})
	return u.b.problem("write", u.key, err)
}

// split sends a large file in parts, a few together.
func (u *upload) split(ctx context.Context, size int64) (err error) {
	part := u.b.part
	for (size+part-1)/part > maxParts {
		part *= 2
	}
	count := int((size + part - 1) / part)
	made, err := u.b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &u.b.at.Bucket, Key: &u.key, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
	})
	if err != nil {
		return u.b.problem("begin to write", u.key, err)
	}
	id := aws.ToString(made.UploadId)
	defer func() {
		if err == nil {
			return
		}
		// What is not finished costs money until somebody removes it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortFor)
		defer cancel()
		_, _ = u.b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &u.b.at.Bucket, Key: &u.key, UploadId: &id})
	}()
	parts := make([]types.CompletedPart, count)
	crcs := make([]byte, 0, 4*count)
	// Larger parts, fewer of them together.
	weight := int(min((part+writePart-1)/writePart, inFlight))
	sent, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	for i := 0; i < count && sent.Err() == nil; i++ {
		n := min(part, size-int64(i)*part)
		if u.b.parts.hold(sent, weight) != nil {
			break
		}
		release := func() { u.b.parts.free(weight) }
		buf := writeBuffers.Get().(*[]byte)
		if int64(cap(*buf)) < n {
			big := make([]byte, n)
			buf = &big
		}
		data := (*buf)[:n]
		if err := u.read(data); err != nil {
			release()
			stop(err)
			break
		}
		crc := crc32.Checksum(data, castagnoli)
		crcs = append(crcs, byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc))
		number, text := int32(i+1), crcText(crc)
		wg.Go(func() {
			defer release()
			out, err := u.b.client.UploadPart(sent, &s3.UploadPartInput{
				Bucket: &u.b.at.Bucket, Key: &u.key, UploadId: &id, PartNumber: &number, Body: bytes.NewReader(data),
				ContentLength: &n, ChecksumCRC32C: &text,
			})
			if cap(*buf) == writePart {
				writeBuffers.Put(buf)
			}
			if err != nil {
				stop(u.b.problem("write a part of", u.key, err))
				return
			}
			parts[number-1] = types.CompletedPart{PartNumber: &number, ETag: out.ETag, ChecksumCRC32C: &text}
		})
	}
	wg.Wait()
	if sent.Err() != nil {
		return context.Cause(sent)
	}
	if err := u.end(); err != nil {
		return err
	}
	sum := crc32.Checksum(crcs, castagnoli)
	u.crc = fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), count)
	_, err = u.b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &u.b.at.Bucket, Key: &u.key, UploadId: &id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	if codeOf(err) == "NoSuchUpload" {
		return nil // the answer to an earlier try was lost; confirm looks at what is there
	}
	return u.b.problem("finish writing", u.key, err)
}

// confirm asks the store what it keeps. One that tells no checksum is read back: nothing
// is called prepared on a client's word alone.
func (u *upload) confirm(ctx context.Context, digest string, size int64) error {
	o, err := u.b.head(ctx, u.key)
	if err != nil {
		return err
	}
	name := "s3://" + u.b.at.Bucket + "/" + u.key
	switch {
	case o.size != size:
		return fmt.Errorf("%s has %d bytes after %d were written", name, o.size, size)
	case o.crc == u.crc:
		return nil
	case o.crc != "":
		return fmt.Errorf("%s has the checksum %s after bytes of %s were written", name, o.crc, u.crc)
	}
	r, _, err := u.b.open(ctx, u.key)
	if err != nil {
		return err
	}
	defer r.Close()
	h := xxh3.New128()
	if _, err := io.Copy(h, r); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	sum := h.Sum128().Bytes()
	if got := hex.EncodeToString(sum[:]); got != digest {
		return fmt.Errorf("%s has the digest %s after bytes of %s were written", name, got, digest)
	}
	return nil
}
