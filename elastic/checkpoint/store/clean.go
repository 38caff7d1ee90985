package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
)

// maxObjects bounds a walk, which users' programs filled.
const maxObjects = 4 * checkpoint.MaxFiles

// List implements checkpoint.Store. The listing finds names; what each of them is, its
// own marks say.
func (b *Bucket) List(ctx context.Context, run string) (checkpoint.Listing, error) {
	var l checkpoint.Listing
	if err := checkpoint.ValidRun(run); err != nil {
		return l, err
	}
	_, names, _, err := b.walk(ctx, b.top(run)+"/", true, maxObjects)
	if err != nil {
		return l, fmt.Errorf("list checkpoints of %s: %w", run, err)
	}
	var mu sync.Mutex
	err = each(ctx, len(names), func(ctx context.Context, i int) error {
		n, err := checkpoint.ParseStepName(names[i])
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			l.Odd = append(l.Odd, names[i])
			return nil
		}
		dir := checkpoint.StepDir(b.address, run, n)
		mark, ok, err := b.claim(ctx, dir)
		if err != nil && !errors.Is(err, checkpoint.ErrMark) && !errors.Is(err, checkpoint.ErrNewer) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		l.Steps = append(l.Steps, n)
		l.HighestGeneration = max(l.HighestGeneration, n.Generation)
		if err != nil {
			l.Odd = append(l.Odd, names[i])
		} else if ok {
			l.Candidates = append(l.Candidates, checkpoint.Candidate{StepName: n, Dir: dir, Mark: mark})
		}
		return nil
	})
	if err != nil {
		return checkpoint.Listing{}, fmt.Errorf("list checkpoints of %s: %w", run, err)
	}
	l.Sort()
	return l, nil
}

// claim reads committed.json where no rolled-back.json stands.
func (b *Bucket) claim(ctx context.Context, dir string) (checkpoint.CommittedMark, bool, error) {
	var none checkpoint.CommittedMark
	switch _, err := b.head(ctx, b.key(dir, checkpoint.RolledBackFile)); {
	case err == nil:
		return none, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return none, false, err
	}
	data, err := b.small(ctx, b.key(dir, checkpoint.CommittedFile), maxMark)
	if errors.Is(err, fs.ErrNotExist) {
		return none, false, nil
	}
	if err != nil {
		return none, false, err
	}
	mark, err := checkpoint.ParseCommittedMark(data)
	return mark, err == nil, err
}

// Delete implements checkpoint.Store.
func (b *Bucket) Delete(ctx context.Context, run, dir string) error {
	if _, err := b.stepDir(run, dir); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := b.clear(ctx, dir); err != nil {
		return fmt.Errorf("delete %s: %w", dir, err)
	}
	return nil
}

// clear removes committed.json, then the manifest, then the rest: what is cut short leaves
// garbage and never a step that looks committed.
func (b *Bucket) clear(ctx context.Context, dir string) error {
	for _, name := range []string{checkpoint.CommittedFile, checkpoint.ManifestFile} {
		if err := b.remove(ctx, b.key(dir, name)); err != nil {
			return err
		}
	}
	objects, _, _, err := b.walk(ctx, b.key(dir)+"/", false, maxObjects)
	if err != nil {
		return err
	}
	// rolled-back.json last: as long as anything stands, it says why nobody may use it.
	mark := b.key(dir, checkpoint.RolledBackFile)
	objects = slices.DeleteFunc(objects, func(o object) bool { return o.key == mark })
	err = each(ctx, len(objects), func(ctx context.Context, i int) error { return b.remove(ctx, objects[i].key) })
	if err == nil {
		err = b.remove(ctx, mark)
	}
	if err != nil {
		return err
	}
	return b.abort(ctx, b.key(dir)+"/", nil)
}

// abort ends unfinished uploads below a prefix that ok admits, by the key and the time when
// they began (nil: all).
func (b *Bucket) abort(ctx context.Context, prefix string, ok func(key string, begun time.Time) bool) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &b.at.Bucket, Prefix: &prefix}
	for {
		out, err := b.client.ListMultipartUploads(ctx, in)
		if codeOf(err) == "NotImplemented" {
			return nil
		}
		if err != nil {
			return b.problem("list unfinished uploads of", prefix, err)
		}
		for _, u := range out.Uploads {
			if ok != nil && !ok(aws.ToString(u.Key), aws.ToTime(u.Initiated)) {
				continue
			}
			_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.at.Bucket, Key: u.Key, UploadId: u.UploadId})
			if err != nil && codeOf(err) != "NoSuchUpload" {
				return b.problem("end an unfinished upload of", aws.ToString(u.Key), err)
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// Sweep implements checkpoint.Store. Steps of which only unfinished uploads are left stand
// in no listing, so these are looked through as well.
func (b *Bucket) Sweep(ctx context.Context, run string, o checkpoint.SweepOrder, now time.Time) ([]string, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	if err := checkpoint.ValidRun(run); err != nil {
		return nil, err
	}
	_, names, server, err := b.walk(ctx, b.top(run)+"/", true, maxObjects)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	if server.IsZero() || now.Before(server) {
		server = now
	}
	var removed []string
	var errs []error
	for _, name := range names {
		n, err := checkpoint.ParseStepName(name)
		if err != nil || !o.Covers(n) {
			continue
		}
		dir := checkpoint.StepDir(b.address, run, n)
		garbage, err := b.garbage(ctx, dir, n.Life != o.Life, now)
		if err == nil && garbage {
			err = b.clear(ctx, dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", dir, err))
		} else if garbage {
			removed = append(removed, name)
		}
		if ctx.Err() != nil {
			return removed, ctx.Err()
		}
	}
	prefix := b.top(run) + "/"
	errs = append(errs, b.abort(ctx, prefix, func(key string, begun time.Time) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		n, err := checkpoint.ParseStepName(name)
		// Of a step that stands as well: all of its files are there, and what is not
		// finished belongs to a try whose answer was lost. Another cluster may be at it still.
		return err == nil && n.Generation < o.Generation && (n.Life == o.Life || server.Sub(begun) >= checkpoint.ForeignAge)
	}))
	return removed, errors.Join(errs...)
}

// garbage decides by the absence of committed.json, asked for by its own name.
func (b *Bucket) garbage(ctx context.Context, dir string, foreign bool, now time.Time) (bool, error) {
	if _, err := b.head(ctx, b.key(dir, checkpoint.CommittedFile)); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if !foreign {
		return true, nil
	}
	objects, _, server, err := b.walk(ctx, b.key(dir)+"/", false, maxObjects)
	if err != nil || len(objects) == 0 {
		return false, err
	}
	// The times are the store's, so its clock is the one to compare with; a node whose
	// clock is ahead must not take another cluster's save for an old one.
	if server.IsZero() || now.Before(server) {
		server = now
	}
	last := objects[0].modified
	for _, o := range objects {
		if o.modified.After(last) {
			last = o.modified
		}
	}
	return server.Sub(last) >= checkpoint.ForeignAge, nil
}
