package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// follower prints a job's output as it comes, attempt after attempt, and tells its
// changes of state; it ends when the job has ended and every byte was printed.
type follower struct {
	a    *app
	c    *troupe.Client
	id   string
	o    logOptions
	mu   sync.Mutex // of the output
	wg   sync.WaitGroup
	errs chan error
	// begun are the attempts whose output is being printed.
	begun map[int64]bool
	// speaks are ranks whose output is waited for, by attempt and rank: closed when the rank
	// has begun. There is nothing to ask for before.
	speaks map[[2]int64]chan struct{}
	told   int64 // newest attempt whose cause was told
	last   api.Job
	live   *liveLine
}

func newFollower(a *app, c *troupe.Client, id string, o logOptions) *follower {
	return &follower{a: a, c: c, id: id, o: o, begun: map[int64]bool{}, speaks: map[[2]int64]chan struct{}{}, errs: make(chan error, 1), live: a.liveLine()}
}

// run follows until the end. On an error or ctx's end the job as last seen comes too.
func (f *follower) run(ctx context.Context) (api.Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.last.ID = f.id
	var index uint64
	var state api.JobState
	for {
		j, err := f.c.NextJob(ctx, f.id, index)
		if err != nil {
			cancel()
			f.wg.Wait()
			return f.last, err
		}
		f.last, index = j, j.Index
		if j.State != state {
			state = j.State
			f.tell(j)
		}
		f.tellFailures(j)
		for _, at := range j.Attempts {
			if !f.begun[at.Number] && f.wantsAttempt(at.Number, j) {
				f.begun[at.Number] = true
				f.start(ctx, at)
			}
		}
		f.hear(j)
		if j.State.Terminal() {
			f.wg.Wait()
			select {
			case err := <-f.errs:
				return j, err
			default:
				return j, ctx.Err()
			}
		}
	}
}

// unheard is how long a rank's output is waited for that is not known to have begun.
const unheard = 300 * time.Millisecond

// hear notes which ranks have begun.
func (f *follower) hear(j api.Job) {
	for _, at := range j.Attempts {
		for i := range at.Ranks {
			key := [2]int64{at.Number, at.Ranks[i].Rank}
			if c := f.speaks[key]; c != nil && (at.Ranks[i].State != "" || !at.Ended.IsZero() || j.State.Terminal()) {
				close(c)
				delete(f.speaks, key)
			}
		}
	}
}

// await returns when a rank has begun, or after a while.
func await(ctx context.Context, begun <-chan struct{}) {
	t := time.NewTimer(unheard)
	defer t.Stop()
	select {
	case <-begun:
	case <-t.C:
	case <-ctx.Done():
	}
}

// wantsAttempt: without --attempt everything from the newest attempt at the start on.
func (f *follower) wantsAttempt(n int64, j api.Job) bool {
	if f.o.attempt != "" {
		return f.o.wants(n, j.Attempt)
	}
	for seen := range f.begun {
		if n > seen {
			return true
		}
	}
	return n == j.Attempt
}

// names are those of the nodes, asked for only when there is something to say.
func (f *follower) names() *nodeNames { return f.a.names(context.Background()) }

func (f *follower) tell(j api.Job) {
	switch j.State {
	case api.Queued:
		if j.Reason != nil {
			f.a.note("queued: %s", clean(f.names().in(j.Reason.Text)))
		}
	case api.Stopping:
		if j.Reason != nil {
			f.a.note("stopping: %s", clean(f.names().in(j.Reason.Text)))
		}
	case api.Reserved, api.Starting, api.Running, api.Recovering, api.Draining, api.Held, api.Suspended,
		api.Succeeded, api.Failed, api.Stopped, api.Preempted:
	}
}

// tellFailures says of every failed attempt that another followed what it failed of.
func (f *follower) tellFailures(j api.Job) {
	for i, now := range j.Attempts {
		if i == 0 || now.Number <= f.told || j.Attempts[i-1].Failure == nil {
			continue
		}
		f.told = now.Number
		from := "from scratch"
		if s := now.RestoreStep; s != nil {
			from = fmt.Sprintf("from step %d", *s)
		}
		before := j.Attempts[i-1]
		f.a.note("attempt %d failed: %s; attempt %d starts %s", before.Number, clean(failureText(f.names(), before.Failure)), now.Number, from)
	}
}

// start follows every wanted stream of an attempt.
func (f *follower) start(ctx context.Context, at api.Attempt) {
	ranks, err := parseRanks(f.o.ranks, int64(len(at.Ranks)))
	if err != nil {
		f.fail(err)
		return
	}
	for _, r := range ranks {
		if c := f.a.attach; c != nil && c.node != "" && at.Ranks[r].Node != c.node {
			continue // its own host shows it
		}
		begun := make(chan struct{})
		f.speaks[[2]int64{at.Number, at.Ranks[r].Rank}] = begun
		for _, s := range f.o.streams() {
			out := f.a.out
			if s == "stderr" && !f.o.merge {
				out = f.a.err
			}
			w := &lineWriter{a: f.a, mu: &f.mu, prefix: prefixOf(f.o, r, at.Number, s), json: f.o.prefix == "json", out: out}
			if w.prefix == "" {
				w.live = f.live
			}
			done := func() {}
			if f.a.attach != nil {
				var err error
				if w, done, err = f.a.attach.sink(f.last, at, at.Ranks[r], s); err != nil {
					f.fail(err)
					return
				}
			}
			f.wg.Go(func() {
				defer done()
				await(ctx, begun)
				take := func(p []byte) error { w.write(p); return nil }
				offset, err := f.c.FollowLog(ctx, f.id, r, at.Number, s, 0, take)
				for f.c.Patience == forever && errors.Is(err, troupe.ErrUnreachable) && ctx.Err() == nil {
					select { // an address that refuses does so at once
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
					offset, err = f.c.FollowLog(ctx, f.id, r, at.Number, s, offset, take)
				}
				w.flush()
				if f.a.attach != nil && s == "stderr" && err == nil {
					f.a.attach.takeError(ctx, f.c, f.id, at, at.Ranks[r])
				}
				if p := troupe.AsProblem(err); p != nil && p.Status == 404 {
					return // the rank never started, so it wrote nothing
				}
				if err != nil && ctx.Err() == nil {
					f.fail(fmt.Errorf("the output of rank %d broke off: %w", r, err))
				}
			})
		}
	}
}

func (f *follower) fail(err error) {
	select {
	case f.errs <- err:
	default:
	}
}

// endText is the result line of an ended job.
func endText(j api.Job) string {
	s := string(j.State)
	if j.Reason != nil && j.Reason.Text != "" && j.State != api.Succeeded {
		s += ": " + clean(j.Reason.Text)
	}
	return s
}
