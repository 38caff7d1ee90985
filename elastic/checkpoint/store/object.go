package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
)

// Bucket is a store below a prefix of an S3 bucket.
type Bucket struct {
	client  *s3.Client
	at      checkpoint.Location
	address string
	parts   *slots
	part    int64
}

var _ checkpoint.Uploader = (*Bucket)(nil)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcText(crc uint32) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], crc)
	return base64.StdEncoding.EncodeToString(b[:])
}

// key is the name of an object in the bucket.
func (b *Bucket) key(dir string, parts ...string) string {
	return strings.Join(append([]string{strings.TrimPrefix(dir, "s3://"+b.at.Bucket+"/")}, parts...), "/")
}

// top is a key right below the store's prefix.
func (b *Bucket) top(name string) string {
	if b.at.Prefix == "" {
		return name
	}
	return b.at.Prefix + "/" + name
}

// problem says what went wrong with an object in a sentence; what is not there wraps
// fs.ErrNotExist. What the SDK says holds addresses and request ids, no secret.
func (b *Bucket) problem(what, key string, err error) error {
	if err == nil {
		return nil
	}
	name := "s3://" + b.at.Bucket + "/" + key
	switch code := codeOf(err); code {
	case "NoSuchKey", "NotFound":
		return fmt.Errorf("%s %s: %w", what, name, fs.ErrNotExist)
	case "NoSuchBucket":
		return fmt.Errorf("%s %s: there is no bucket %s", what, name, b.at.Bucket)
	case "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken":
		return fmt.Errorf("%s %s: refused (%s): the credentials of this node may not do it: %w", what, name, code, err)
	}
	if strings.Contains(err.Error(), "get credentials") || strings.Contains(err.Error(), "no EC2 IMDS role") {
		return fmt.Errorf("%s %s: this node has no credentials; give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials or a role: %w", what, name, err)
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}

func codeOf(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}

// info is what the store says of an object.
type info struct {
	size     int64
	etag     string
	crc      string // base64 crc32c, of parts with "-<count>"; empty: the store keeps none
	modified time.Time
}

func (b *Bucket) head(ctx context.Context, key string) (info, error) {
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.at.Bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		return info{}, b.problem("look at", key, err)
	}
	return info{aws.ToInt64(out.ContentLength), aws.ToString(out.ETag), aws.ToString(out.ChecksumCRC32C), aws.ToTime(out.LastModified)}, nil
}

// small reads a whole object of at most limit bytes. An answer that breaks off is asked
// for again.
func (b *Bucket) small(ctx context.Context, key string, limit int64) ([]byte, error) {
	var last error
	for try := range tries {
		if try > 0 && !pause(ctx, try) {
			break
		}
		out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.at.Bucket, Key: &key})
		if err != nil {
			return nil, b.problem("read", key, err)
		}
		size := aws.ToInt64(out.ContentLength)
		data, err := io.ReadAll(io.LimitReader(out.Body, limit+1))
		_ = out.Body.Close()
		switch {
		case err == nil && int64(len(data)) > limit:
			return nil, fmt.Errorf("read s3://%s/%s: more than %d bytes", b.at.Bucket, key, limit)
		case err == nil && int64(len(data)) == size:
			return data, nil
		case err == nil:
			err = io.ErrUnexpectedEOF
		}
		last = err
	}
	return nil, b.problem("read", key, errors.Join(last, ctx.Err()))
}

// createOnly puts an object under the condition that its name is free. If it is taken
// it returns what is there instead, never nil then. An answer that was lost is no
// trouble: the next try finds its own bytes.
func (b *Bucket) createOnly(ctx context.Context, key string, data []byte) (there []byte, err error) {
	crc := crcText(crc32.Checksum(data, castagnoli))
	for try := 0; ; try++ {
		_, err = b.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &b.at.Bucket, Key: &key, Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))),
			IfNoneMatch: aws.String("*"), ChecksumCRC32C: &crc,
		})
		switch codeOf(err) {
		case "PreconditionFailed":
			there, err = b.small(ctx, key, checkpoint.MaxManifest)
			if there == nil && err == nil {
				there = []byte{}
			}
			if errors.Is(err, fs.ErrNotExist) && try < tries && pause(ctx, try+1) {
				continue // it was there a moment ago
			}
			return there, err
		case "ConditionalRequestConflict": // another writer is at it
			if try < tries && pause(ctx, try+1) {
				continue
			}
		}
		return nil, b.problem("write", key, err)
	}
}

func (b *Bucket) remove(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.at.Bucket, Key: &key})
	if err = b.problem("remove", key, err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// object is one entry of a listing.
type object struct {
	key      string
	modified time.Time
}

// walk lists what begins with prefix: objects, or with folders the names up to the next
// slash. server is the store's own time, against which its times are to be compared.
func (b *Bucket) walk(ctx context.Context, prefix string, folders bool, most int) (objects []object, names []string, server time.Time, err error) {
	in := &s3.ListObjectsV2Input{Bucket: &b.at.Bucket, Prefix: &prefix}
	if folders {
		in.Delimiter = aws.String("/")
	}
	for {
		out, err := b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return nil, nil, server, b.problem("list", prefix, err)
		}
		if t, ok := awsmiddleware.GetServerTime(out.ResultMetadata); ok {
			server = t
		}
		for _, o := range out.Contents {
			objects = append(objects, object{aws.ToString(o.Key), aws.ToTime(o.LastModified)})
		}
		for _, p := range out.CommonPrefixes {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(aws.ToString(p.Prefix), prefix), "/"))
		}
		if len(objects)+len(names) > most {
			return nil, nil, server, fmt.Errorf("list s3://%s/%s: more than %d entries", b.at.Bucket, prefix, most)
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextContinuationToken) == "" {
			return objects, names, server, nil
		}
		in.ContinuationToken = out.NextContinuationToken
	}
}

// pause waits before another try; false when the context ended.
func pause(ctx context.Context, try int) bool {
	t := time.NewTimer(time.Duration(try) * 50 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
