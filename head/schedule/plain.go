package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PlainRule is a rule of textbooks that places on counts alone: no nodes, no topology, no
// quotas, no preemption. The rules are what the scheduler is compared with.
type PlainRule string

// Plain rules.
const (
	PlainFIFO     PlainRule = "fifo"      // in order of submission; the first that does not fit blocks
	PlainShortest PlainRule = "shortest"  // shortest first; the first that does not fit blocks
	PlainFirstFit PlainRule = "first-fit" // in order of submission; whatever fits starts
	PlainEASY     PlainRule = "easy"      // first in, first out; others start if they do not delay the first
)

// PlainRules lists them.
var PlainRules = []PlainRule{PlainFIFO, PlainShortest, PlainFirstFit, PlainEASY}

// plainWindow is how many waiting requests first-fit and EASY look at.
const plainWindow = 1000

// Counted is a request for so many of one thing, for so long.
type Counted struct {
	ID   int // returned by Pass; also its place in the order of submission
	Need int64
	// Takes is how long it runs, as far as the rule knows.
	Takes time.Duration
}

// Plain applies one rule to a pool of Total things. The caller keeps the time: it reports
// what ends and what arrives and then asks which requests start.
type Plain struct {
	rule    PlainRule
	free    int64
	queue   []Counted // in order of submission
	short   shortest
	running []plainRun // in order of their ends
}

type plainRun struct {
	id   int
	need int64
	ends time.Duration
}

// NewPlain makes an empty pool.
func NewPlain(rule PlainRule, total int64) (*Plain, error) {
	if !slices.Contains(PlainRules, rule) {
		return nil, fmt.Errorf("unknown rule %q: use %s", rule, plainNames())
	}
	if total <= 0 {
		return nil, fmt.Errorf("a pool of %d: it needs at least one", total)
	}
	return &Plain{rule: rule, free: total}, nil
}

func plainNames() string {
	names := make([]string, len(PlainRules))
	for i, r := range PlainRules {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// Submit lets a request wait. Requests are submitted in the order of their ids.
func (p *Plain) Submit(c Counted) {
	if p.rule == PlainShortest {
		heap.Push(&p.short, c)
		return
	}
	p.queue = append(p.queue, c)
}

// Waiting is how many wait.
func (p *Plain) Waiting() int { return len(p.queue) + len(p.short) }

// Free is how many of the pool nobody has.
func (p *Plain) Free() int64 { return p.free }

// Ended gives back what a running request had; it is an error if it does not run.
func (p *Plain) Ended(id int) error {
	i := slices.IndexFunc(p.running, func(r plainRun) bool { return r.id == id })
	if i < 0 {
		return fmt.Errorf("request %d does not run", id)
	}
	p.free += p.running[i].need
	p.running = slices.Delete(p.running, i, i+1)
	return nil
}

// Pass says which requests start now, since what time the caller likes, in order.
func (p *Plain) Pass(now time.Duration) []int {
	var started []int
	start := func(c Counted) {
		p.free -= c.Need
		run := plainRun{id: c.ID, need: c.Need, ends: now + c.Takes}
		i, _ := slices.BinarySearchFunc(p.running, run, func(a, b plainRun) int {
			return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.id, b.id))
		})
		p.running = slices.Insert(p.running, i, run)
		started = append(started, c.ID)
	}
	for len(p.short) > 0 && p.short[0].Need <= p.free {
		start(p.short[0])
		heap.Pop(&p.short)
	}
	if p.rule != PlainFirstFit {
		for len(p.queue) > 0 && p.queue[0].Need <= p.free {
			start(p.queue[0])
			p.queue = p.queue[1:]
		}
	}
	switch {
	case len(p.queue) == 0:
	case p.rule == PlainFirstFit:
		p.sweep(0, func(Counted) bool { return true }, start)
	case p.rule == PlainEASY:
		shadow, extra := p.shadow()
		p.sweep(1, func(c Counted) bool {
			if now+c.Takes <= shadow {
				return true
			}
			if c.Need > extra {
				return false
			}
			extra -= c.Need
			return true
		}, start)
	}
	return started
}

// sweep starts what fits and may start among the next requests of the queue.
func (p *Plain) sweep(from int, may func(Counted) bool, start func(Counted)) {
	end := min(len(p.queue), from+plainWindow)
	kept := end // what stays of the window is moved to its end
	for i := from; i < end && p.free > 0; i++ {
		if c := p.queue[i]; c.Need <= p.free && may(c) {
			start(c)
			p.queue[i].ID = -1
			kept = 0
		}
	}
	if kept == end {
		return
	}
	to := end
	for i := end - 1; i >= 0; i-- {
		if p.queue[i].ID >= 0 {
			to--
			p.queue[to] = p.queue[i]
		}
	}
	p.queue = p.queue[to:]
}

// shadow is when the first of the queue can start, by the ends of what runs, and how many
// it then leaves free. All that ends at one instant is free at it.
func (p *Plain) shadow() (time.Duration, int64) {
	free, need := p.free, p.queue[0].Need
	for i := 0; i < len(p.running); {
		at := p.running[i].ends
		for ; i < len(p.running) && p.running[i].ends == at; i++ {
			free += p.running[i].need
		}
		if free >= need {
			return at, free - need
		}
	}
	// It never fits: nothing can delay it.
	return 1<<63 - 1, free
}

// shortest is a heap: the shortest first, the older of equals.
type shortest []Counted

func (s shortest) Len() int { return len(s) }
func (s shortest) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(s[i].Takes, s[j].Takes), cmp.Compare(s[i].ID, s[j].ID)) < 0
}
func (s shortest) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *shortest) Push(x any) {
	if c, ok := x.(Counted); ok {
		*s = append(*s, c)
	}
}

func (s *shortest) Pop() any {
	old := *s
	last := old[len(old)-1]
	*s = old[:len(old)-1]
	return last
}
