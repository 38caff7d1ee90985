package store

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// readPart is how much of an object one request reads. Several are under way, since one
// connection to a bucket is slow.
const readPart = 8 << 20

var readBuffers = sync.Pool{New: func() any { b := make([]byte, readPart); return &b }}

// chunk is one part of an object, in order.
type chunk struct {
	done chan struct{}
	buf  *[]byte
	n    int
	err  error
}

// ranged reads an object part by part, a few ahead.
type ranged struct {
	cancel context.CancelFunc
	next   chan *chunk
	parts  *slots
	cur    *chunk
	off    int
}

func (b *Bucket) open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	o, err := b.head(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &ranged{cancel: cancel, next: make(chan *chunk, 2), parts: b.parts}
	go func() {
		defer close(r.next)
		for off := int64(0); off < o.size; off += readPart {
			if b.parts.hold(ctx, 1) != nil {
				return
			}
			c := &chunk{done: make(chan struct{}), buf: readBuffers.Get().(*[]byte), n: int(min(readPart, o.size-off))}
			go func() {
				defer close(c.done)
				c.err = b.readRange(ctx, key, o.etag, off, (*c.buf)[:c.n])
			}()
			r.next <- c // whoever closes drains
		}
	}()
	return r, o.size, nil
}

// readRange fills p from an offset; what breaks off goes on where it was.
func (b *Bucket) readRange(ctx context.Context, key, etag string, off int64, p []byte) error {
	var last error
	for try := range tries {
		if try > 0 && !pause(ctx, try) {
			return ctx.Err()
		}
		in := &s3.GetObjectInput{Bucket: &b.at.Bucket, Key: &key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1))}
		if etag != "" {
			in.IfMatch = &etag // all parts of one object, whoever puts another one meanwhile
		}
		out, err := b.client.GetObject(ctx, in)
		if err != nil {
			return b.problem("read", key, err) // it has been tried again already
		}
		n, err := io.ReadFull(out.Body, p)
		_ = out.Body.Close()
		if err == nil {
			return nil
		}
		off, p, last = off+int64(n), p[n:], err
	}
	return b.problem("read", key, last)
}

func (r *ranged) Read(p []byte) (int, error) {
	for r.cur == nil || r.off == r.cur.n {
		r.release()
		c, ok := <-r.next
		if !ok {
			return 0, io.EOF
		}
		<-c.done
		r.cur, r.off = c, 0
		if c.err != nil {
			return 0, c.err
		}
	}
	if r.cur.err != nil {
		return 0, r.cur.err
	}
	n := copy(p, (*r.cur.buf)[r.off:r.cur.n])
	r.off += n
	return n, nil
}

func (r *ranged) release() {
	if r.cur != nil {
		readBuffers.Put(r.cur.buf)
		r.parts.free(1)
		r.cur = nil
	}
}

// Close ends what is under way.
func (r *ranged) Close() error {
	r.cancel()
	r.release()
	for c := range r.next {
		<-c.done
		r.cur = c
		r.release()
	}
	return nil
}
