// Command pg drives placement groups through a head's HTTP API with the Go SDK, from a
// process of its own, and times what durability alone costs on the same disk, and HTTP
// alone between two processes.
//
//	pg cycles ADDRESS TOKEN-FILE CYCLES CLIENTS CPU GPUS
//	pg floor FOLDER CYCLES
//	pg http CYCLES CLIENTS
//
// It prints one JSON object. bench.py beside it is what people run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// bundles of each group.
const bundles = 4

func main() {
	out, err := run(os.Args[1:])
	if err == nil && out != nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) (any, error) {
	switch {
	case len(args) == 7 && args[0] == "cycles":
		n, err := numbers(args[3:])
		if err != nil {
			return nil, err
		}
		token, err := os.ReadFile(args[2])
		if err != nil {
			return nil, err
		}
		c, err := troupe.New(args[1], strings.TrimSpace(string(token)))
		if err != nil {
			return nil, err
		}
		return cycles(c, n[0], n[1], api.Resources{CPU: unit.MilliCPU(n[2]), GPUs: int64(n[3])})
	case len(args) == 3 && args[0] == "floor":
		n, err := numbers(args[2:])
		if err != nil {
			return nil, err
		}
		return floor(args[1], n[0])
	case len(args) == 3 && args[0] == "http":
		n, err := numbers(args[1:])
		if err != nil {
			return nil, err
		}
		return overHTTP(n[0], n[1], groupOf(api.Resources{CPU: 2}))
	case len(args) == 1 && args[0] == "serve":
		return nil, serve()
	}
	return nil, fmt.Errorf("usage: pg cycles ADDRESS TOKEN-FILE CYCLES CLIENTS CPU GPUS | pg floor FOLDER CYCLES | pg http CYCLES CLIENTS")
}

func numbers(args []string) ([]int, error) {
	var out []int
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a number from 0 on", a)
		}
		out = append(out, n)
	}
	return out, nil
}

// took is what a run measured: milliseconds of each step of each cycle, and seconds of all.
type took struct {
	Create  []float64 `json:"create"` // to a group that is placed, durably
	Remove  []float64 `json:"remove"`
	Waited  int64     `json:"waited"` // groups that were not placed with their creation
	Seconds float64   `json:"seconds"`
	CPU     float64   `json:"cpu"` // seconds that this process computed
}

// groupOf is what is asked for: small bundles of one kind.
func groupOf(each api.Resources) api.GroupSpec {
	return api.GroupSpec{Strategy: api.Pack, Bundles: slices.Repeat([]api.Bundle{{Resources: each}}, bundles)}
}

// cycles runs n cycles of create, ready and remove, divided among clients that each wait
// for every answer.
func cycles(c *troupe.Client, n, clients int, each api.Resources) (took, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	spec := groupOf(each)
	var all took
	var mu sync.Mutex
	var failed error
	var left, waited atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	begin := time.Now()
	for range clients {
		wg.Go(func() {
			var mine took
			var err error
			for err == nil && left.Add(-1) >= 0 {
				err = cycle(ctx, c, spec, &mine, &waited)
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil && err != nil {
				failed = err
				cancel()
			}
			all.Create, all.Remove = append(all.Create, mine.Create...), append(all.Remove, mine.Remove...)
		})
	}
	wg.Wait()
	all.Seconds, all.Waited, all.CPU = time.Since(begin).Seconds(), waited.Load(), cpu()
	return all, failed
}

func cycle(ctx context.Context, c *troupe.Client, spec api.GroupSpec, t *took, waited *atomic.Int64) error {
	begin := time.Now()
	g, err := c.CreateGroup(ctx, spec, "")
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if g.State == api.GroupPending {
		waited.Add(1)
		if g, err = c.WaitGroup(ctx, g.ID); err != nil {
			return fmt.Errorf("wait for %s: %w", g.ID, err)
		}
	}
	placed := time.Now()
	if len(g.Bundles) != bundles {
		return fmt.Errorf("%s is %s with %d of %d bundles", g.ID, g.State, len(g.Bundles), bundles)
	}
	if _, err := c.RemoveGroup(ctx, g.ID); err != nil {
		return fmt.Errorf("remove %s: %w", g.ID, err)
	}
	t.Create = append(t.Create, ms(placed.Sub(begin)))
	t.Remove = append(t.Remove, ms(time.Since(placed)))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// cpu is how long this process has computed, in seconds.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return computed(&u)
}

func computed(u *syscall.Rusage) float64 {
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
