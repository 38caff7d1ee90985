// Command jobs submits many small gangs at once with the Go SDK and waits for the end of
// each.
//
//	jobs ADDRESS TOKEN-FILE JOBS NODES PER-NODE COMMAND…
//
// It prints one JSON object. bench.py beside it is what people run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// submitters is how many requests are under way at once.
const submitters = 16

func main() {
	out, err := run(os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// took is what a run measured, in seconds from the first submit.
type took struct {
	Submitted float64   `json:"submitted"`
	Seconds   float64   `json:"seconds"`
	Ends      []float64 `json:"ends"` // of each job
}

func run(args []string) (took, error) {
	var out took
	if len(args) < 6 {
		return out, errors.New("usage: jobs ADDRESS TOKEN-FILE JOBS NODES PER-NODE COMMAND…")
	}
	var n [3]int64
	for i, text := range args[2:5] {
		x, err := strconv.ParseInt(text, 10, 32)
		if err != nil || x < 1 {
			return out, fmt.Errorf("%q is not a number from 1 on", text)
		}
		n[i] = x
	}
	token, err := os.ReadFile(args[1])
	if err != nil {
		return out, err
	}
	c, err := troupe.New(args[0], strings.TrimSpace(string(token)))
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	b := batch{c: c, begin: time.Now(), ids: make([]string, n[0]), ends: make([]float64, n[0])}
	spec := api.JobSpec{Ranks: n[1] * n[2], RanksPerNode: n[2], Command: args[5:]}
	if err := b.each(ctx, func(i int) error { return b.submit(ctx, i, spec) }); err != nil {
		return out, err
	}
	out.Submitted = time.Since(b.begin).Seconds()
	if err := b.each(ctx, func(i int) error { return b.wait(ctx, i) }); err != nil {
		return out, err
	}
	out.Seconds, out.Ends = time.Since(b.begin).Seconds(), b.ends
	return out, nil
}

// batch is the jobs of one run.
type batch struct {
	c     *troupe.Client
	begin time.Time
	ids   []string
	ends  []float64
}

// each calls f for each job, several at a time, until one fails.
func (b *batch) each(ctx context.Context, f func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	for range submitters {
		wg.Go(func() {
			for failed.Load() == nil && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(b.ids) {
					return
				}
				if err := f(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

func (b *batch) submit(ctx context.Context, i int, spec api.JobSpec) error {
	spec.Name = fmt.Sprintf("gang-%d", i)
	j, err := b.c.SubmitJob(ctx, spec, "")
	b.ids[i] = j.ID
	return err
}

func (b *batch) wait(ctx context.Context, i int) error {
	j, err := b.c.WaitJob(ctx, b.ids[i], nil)
	if err != nil {
		return err
	}
	if j.State != api.Succeeded {
		return fmt.Errorf("job %s is %s: %v", j.ID, j.State, j.Reason)
	}
	b.ends[i] = j.Ended.Sub(b.begin).Seconds()
	return nil
}
