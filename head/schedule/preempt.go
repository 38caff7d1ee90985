package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What the operator does not set.
const (
	// protectedFor is how long work that has just started is left alone.
	protectedFor = time.Minute
	// mostPreemptors is how many different demands one cycle looks for victims for, and
	// mostGiveBacks how many of those that were found it tries to let stay.
	mostPreemptors = 8
	mostGiveBacks  = 64
)

// Preemption ends less important work for more important work, and only with the proof
// that the waiting group then fits, with everything it asks for, on one overlay. It is
// stable: a victim is of a lower rank than who it leaves for, and ranks are ordered, so
// that no two groups can end each other and a victim that asks again evicts nobody.

// standing is how important work is: guaranteed work before opportunistic, then by
// priority. Admission order refines it; it never contradicts it.
type standing struct {
	guaranteed bool
	priority   int64
}

func standingOf(s *api.GroupSpec) standing {
	return standing{guaranteed: !s.Preemptible, priority: s.Priority}
}

func (a standing) compare(b standing) int {
	if a.guaranteed != b.guaranteed {
		if a.guaranteed {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.priority, b.priority)
}

// victim is a holder that may leave, or shrink, at a price.
type victim struct {
	h     *Holder
	price int64 // GPU-seconds of work that would be lost, in thousandths
	each  int64 // price for each device that becomes free
	keeps int64 // bundles that it goes on with; 0: none
}

// gives is what it holds and is to give back.
func (v *victim) gives() []Held { return v.h.Bundles[min(v.keeps, int64(len(v.h.Bundles))):] }

// preempt is phase 5: for the most important groups that wait, who must leave.
func (c *cycle) preempt() {
	if c.s.Policy.NoPreempt {
		return
	}
	lowest, some := c.lowestVictim()
	if !some {
		return
	}
	gone := map[*Holder]bool{}
	tried := map[asked]standing{}
	searches := 0
	c.mem.vain.follow(c)
	for i, r := range c.order {
		if c.fates[i].placed > 0 || len(r.Claim) > 0 {
			continue
		}
		rank := standingOf(&r.Spec)
		if rank.compare(lowest) <= 0 {
			continue
		}
		d := c.mem.demandOf(r, c.now)
		ask := asked{d, c.turns.all[i].c, r.Spec.Reservation}
		if before, ok := tried[ask]; ok && before.compare(rank) >= 0 {
			continue // an equal demand of this or a higher rank, for the same tenant and queue, found nothing
		}
		if v, ok := c.mem.vain.still(ask, rank, c.now); ok && len(gone) == 0 {
			tried[ask] = rank
			c.unhelpful[r.ID] = v.why
			c.lookAgain(v.until)
			continue
		}
		if searches++; searches > mostPreemptors {
			c.lookAgain(c.now.Add(replanPause))
			return
		}
		out, at, found, why := c.victimsFor(r, d, gone)
		if out == nil {
			tried[ask] = rank
			c.unhelpful[r.ID] = why.text
			if len(gone) == 0 {
				c.mem.vain.last[ask] = vain{rank: rank, why: why.text, until: why.until}
			}
			continue
		}
		c.evict(found, d, out, at, gone)
	}
}

// lowestVictim is the least important standing among what may be ended at all.
func (c *cycle) lowestVictim() (lowest standing, some bool) {
	for _, h := range c.s.Holders {
		if !h.mayLeave() {
			continue
		}
		if rank := standingOf(h.Spec); !some || rank.compare(lowest) < 0 {
			lowest, some = rank, true
		}
	}
	return lowest, some
}

// mayLeave: what it holds is known, and nobody has told it to leave.
func (h *Holder) mayLeave() bool {
	return h.Spec != nil && h.Spec.Preemptible && !h.Releasing && !h.Fixed && h.LeavingFor == "" && len(h.Bundles) > 0
}

// candidates are the holders that may leave for a group, the cheapest for each device
// first; soon is when the protection of another one ends.
func (c *cycle) candidates(r *Request, gone map[*Holder]bool) (out []victim, soon time.Time) {
	rank := standingOf(&r.Spec)
	protect := cmp.Or(c.s.Policy.Protect, protectedFor)
	for _, h := range c.s.Holders {
		if gone[h] || !h.mayLeave() || rank.compare(standingOf(h.Spec)) <= 0 {
			continue
		}
		if until := h.Started.Add(protect); !h.Started.IsZero() && until.After(c.now) {
			if soon.IsZero() || until.Before(soon) {
				soon = until
			}
			continue
		}
		price := h.lostWork(c.now)
		devices := max(1, h.devices())
		if n := h.smallest(); n > 0 {
			// Giving up what is more than its smallest size loses nothing but a restart.
			surplus := max(1, devices*(int64(len(h.Bundles))-n)/int64(len(h.Bundles)))
			cost := satMul(devices, h.Restart.Milliseconds())
			out = append(out, victim{h: h, price: cost, each: cost / surplus, keeps: n})
		}
		out = append(out, victim{h: h, price: price, each: price / devices})
	}
	slices.SortFunc(out, func(a, b victim) int {
		return cmp.Or(
			// The surplus of elastic work goes before anything is ended.
			cmp.Compare(min(1, b.keeps), min(1, a.keeps)),
			standingOf(a.h.Spec).compare(standingOf(b.h.Spec)),
			cmp.Compare(a.each, b.each),
			cmp.Compare(b.h.Seq, a.h.Seq), // the youngest first
			cmp.Compare(a.h.Group, b.h.Group),
		)
	})
	return out, soon
}

// devices is how many devices a holder has, at least in part; without any, its CPUs count.
func (h *Holder) devices() int64 {
	var n int64
	for i := range h.Bundles {
		n += int64(len(h.Bundles[i].Devices))
	}
	if n == 0 {
		n = int64(h.CPU) / 1000
	}
	return n
}

// smallest is the smallest size that a holder may go on with, 0: it has one size.
func (h *Holder) smallest() int64 {
	if least := h.Sizes.Least(); least < int64(len(h.Bundles)) {
		return least
	}
	return 0
}

// lostWork prices the end of a holder: its devices times what is not committed and what
// starting again takes, more each time it was preempted before. Work that can save when it
// is asked to loses at most what the save takes.
func (h *Holder) lostWork(now time.Time) int64 {
	since := h.Started
	if h.Committed.After(since) {
		since = h.Committed
	}
	lost := max(0, now.Sub(since))
	if h.SaveCost > 0 {
		lost = min(lost, h.SaveCost)
	}
	ms := satAdd(lost.Milliseconds(), max(0, h.Restart.Milliseconds()))
	return satMul(satMul(ms, max(1, h.devices())), satAdd(1, max(0, h.Evictions)))
}

// gpuTime prints GPU-milliseconds.
func gpuTime(ms int64) string { return fmt.Sprintf("%.1f GPU-hours", float64(ms)/3_600_000) }

// searchFirst is the smallest k below n for which ok holds; ok(n-1) does, and once it holds
// it holds for all larger ones.
func searchFirst(n int, ok func(int) bool) int {
	lo, hi := 0, n-1
	for lo < hi {
		if mid := (lo + hi) / 2; ok(mid) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// whole leaves of each holder one entry: who leaves does not shrink as well.
func whole(vs []victim) []victim {
	var out []victim
	for _, v := range vs {
		if v.keeps > 0 && slices.ContainsFunc(vs, func(o victim) bool { return o.h == v.h && o.keeps == 0 }) {
			continue
		}
		out = append(out, v)
	}
	return out
}

func standingText(r, victim *api.GroupSpec) string {
	if !r.Preemptible && victim.Preemptible {
		return "guaranteed work before preemptible"
	}
	return fmt.Sprintf("priority %d over %d", r.Priority, victim.Priority)
}
