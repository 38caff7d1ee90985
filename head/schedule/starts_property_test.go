package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// drawTimely makes a cluster that is well and of which all is known, in use for known
// times, with groups that wait for known times.
func drawTimely(t *rapid.T) *Snapshot {
	s := &Snapshot{Levels: []api.Level{{Name: "zone", Label: "zone"}}, Mix: []Shape{{Bundle: gpus(1), Weight: 1}}}
	s.Policy.Order, s.Policy.NoPreempt = OrderFIFO, true
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		b := aNode(fmt.Sprintf("n%d", i)).cpu(8_000).memory(8).gpus(rapid.IntRange(0, 4).Draw(t, "gpus"), 72)
		b = b.label("zone", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")).pool(rapid.SampledFrom([]string{"", "p"}).Draw(t, "pool"))
		s.Nodes = append(s.Nodes, &b.node)
	}
	s.Holders = drawHolders(t, s.Nodes)
	for _, h := range s.Holders {
		h.Releasing = false
		h.Started = epoch.Add(-time.Minute)
		h.Ends = epoch.Add(minutes(t, "holder ends"))
	}
	lastSeq := uint64(0)
	for i := range rapid.IntRange(1, 7).Draw(t, "requests") {
		lastSeq++
		s.Pending = append(s.Pending, drawWaiting(t, fmt.Sprintf("r%d", i), lastSeq))
	}
	return s
}

func minutes(t *rapid.T, what string) time.Duration {
	return time.Duration(rapid.IntRange(1, 6).Draw(t, what)) * 10 * time.Minute
}

func drawWaiting(t *rapid.T, id string, seq uint64) *Request {
	r := &Request{ID: id, Name: id, Seq: seq, Spec: drawSpec(t, 4), Since: epoch, Expect: minutes(t, "runs")}
	r.Spec.Priority = 0
	if rapid.IntRange(0, 4).Draw(t, "level") == 0 {
		r.Spec.Level = "zone"
		if rapid.Bool().Draw(t, "preferred") {
			r.Spec.LevelWait = new(unit.Duration(minutes(t, "level wait")))
		}
	}
	return r
}

// What comes later in the order, whether it is there or not, moves no planned start.
func TestPropLaterRequestsMoveNoPlannedStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawTimely(t)
		all := Plan(s, epoch)
		few := *s
		few.Pending = s.Pending[:rapid.IntRange(0, len(s.Pending)).Draw(t, "first")]
		for _, d := range Plan(&few, epoch) {
			if other := decisionFor(all, d.Group); !d.Start.Equal(other.Start) || (d.Bundles == nil) != (other.Bundles == nil) {
				t.Fatalf("%s starts at %s alone and at %s with what comes later", d.Group, d.Start, other.Start)
			}
		}
	})
}

// Every waiting group that could ever run has a planned start, where all is known.
func TestPropWhateverCanRunHasAStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawTimely(t)
		for _, d := range Plan(s, epoch) {
			i := slices.IndexFunc(s.Pending, func(r *Request) bool { return r.ID == d.Group })
			if d.Bundles == nil && d.Start.IsZero() && Never(s, s.Pending[i].Spec) == nil {
				t.Fatalf("%s could run and has no start: %+v", d.Group, d.Reasons)
			}
		}
	})
}

// world plays a snapshot to its end: what starts runs as long as was expected.
type world struct {
	s   *Snapshot
	now time.Time
}

// end takes out what has ended by a time, and gives back what it held.
func (w *world) end(at time.Time) {
	w.now = at
	s := *w.s
	s.Nodes, s.Holders = slices.Clone(s.Nodes), slices.Clone(s.Holders)
	s.Holders = slices.DeleteFunc(s.Holders, func(h *Holder) bool {
		if h.Ends.After(at) {
			return false
		}
		for _, b := range h.Bundles {
			w.change(&s, b, 1)
		}
		return true
	})
	w.s = &s
}

func (w *world) change(s *Snapshot, b Held, sign int64) {
	n := s.Own(slices.IndexFunc(s.Nodes, func(n *Node) bool { return n.ID == b.Node }))
	n.FreeCPU += unit.MilliCPU(sign) * b.CPU
	n.FreeMemory += unit.Bytes(sign) * b.Memory
	for d := range n.GPUs {
		g := &n.GPUs[d]
		if !slices.Contains(b.Devices, g.UUID) {
			continue
		}
		if b.Share > 0 {
			g.Share += sign * b.Share
			g.Free += unit.Bytes(sign) * b.GPUMemory
		} else if sign > 0 {
			g.Share, g.Free = 1000, g.Usable
		} else {
			g.Share, g.Free = 0, 0
		}
	}
}

// start makes holders of what was placed.
func (w *world) start(ds []Decision) {
	s := *w.s
	s.Nodes, s.Holders, s.Pending = slices.Clone(s.Nodes), slices.Clone(s.Holders), slices.Clone(s.Pending)
	for _, d := range ds {
		if d.Bundles == nil {
			continue
		}
		i := slices.IndexFunc(s.Pending, func(r *Request) bool { return r.ID == d.Group })
		r := s.Pending[i]
		s.Pending = slices.Delete(s.Pending, i, i+1)
		h := &Holder{Group: r.ID, Name: r.Name, User: r.User, Seq: r.Seq, Evictions: r.Evictions, Spec: &r.Spec, Started: w.now, Ends: w.now.Add(r.Expect)}
		for _, p := range d.Bundles {
			b := &r.Spec.Bundles[p.Bundle]
			held := Held{Node: p.Node, CPU: b.CPU, Memory: b.Memory, Devices: p.Devices, Share: b.Share}
			if b.Share > 0 {
				held.GPUMemory = b.GPUMemory
				if b.GPUMemory == 0 {
					held.GPUMemory = unit.Bytes((&gpuState{usable: 72 * gib}).shareBytes(&class{share: b.Share}))
				}
			}
			h.Bundles = append(h.Bundles, held)
			h.Nodes = append(h.Nodes, p.Node)
			h.CPU, h.Memory = h.CPU+held.CPU, h.Memory+held.Memory
			if b.Share == 0 {
				h.GPUs += int64(len(p.Devices))
			}
			w.change(&s, held, -1)
		}
		h.Nodes = sortedCopy(h.Nodes)
		s.Holders = append(s.Holders, h)
	}
	w.s = &s
}

// next is when something ends next; false: nothing runs.
func (w *world) next() (time.Time, bool) {
	var at time.Time
	for _, h := range w.s.Holders {
		if at.IsZero() || h.Ends.Before(at) {
			at = h.Ends
		}
	}
	for _, r := range w.s.Pending { // a level is waited for no longer
		if l := r.Spec.LevelWait; l != nil && r.Since.Add(time.Duration(*l)).After(w.now) {
			if open := r.Since.Add(time.Duration(*l)); at.IsZero() || open.Before(at) {
				at = open
			}
		}
	}
	return at, !at.IsZero()
}

// Where everything runs as long as it was expected to, no start that is made
// delays one that was planned before it in the order. The first of the line starts at its
// first planned start at the latest, though others come after it; with a planner that keeps
// its plan so do the others, unless one before them starts sooner.
func TestPropNoStartDelaysAPlannedOne(t *testing.T) {
	waited := 0
	checkUntil(t, func() bool { return waited > 0 }, func(t *rapid.T) {
		w := &world{s: drawTimely(t), now: epoch}
		p := NewPlanner()
		p.PlanAge = time.Duration(rapid.SampledFrom([]int{0, 15, 1000}).Draw(t, "age")) * time.Minute
		promised := map[string]time.Time{}
		arrivals := rapid.IntRange(0, 4).Draw(t, "arrivals")
		for range 200 {
			ds := p.Plan(w.s, w.now).All()
			sooner := false // one before it is to start sooner, and may take other nodes
			for i, d := range ds {
				at := d.Start
				if d.Bundles != nil {
					at = w.now
				}
				first, ok := promised[d.Group]
				moved := ok && (at.After(first) || at.IsZero())
				if moved && (i == 0 || p.PlanAge > 0 && !sooner) {
					t.Fatalf("%s was to start at %s, and is to start at %s at %s", d.Group, first, at, w.now)
				}
				sooner = sooner || moved || ok && at.Before(first) || !ok && d.Bundles != nil
				if !at.IsZero() && (!ok || at.Before(first) || moved) {
					promised[d.Group] = at
				}
				if d.Bundles == nil && !at.IsZero() {
					waited++
				}
			}
			w.start(ds)
			for _, n := range w.s.Nodes {
				if n.FreeCPU < 0 || n.FreeMemory < 0 || slices.ContainsFunc(n.GPUs, func(g GPU) bool { return g.Share < 0 || g.Free < 0 }) {
					t.Fatalf("more is held of %s than it has", n.Name)
				}
			}
			if arrivals > 0 && rapid.Bool().Draw(t, "one more") {
				arrivals--
				s := *w.s
				r := drawWaiting(t, fmt.Sprintf("late%d", arrivals), uint64(1000-arrivals))
				r.Since = w.now
				s.Pending = append(slices.Clone(s.Pending), r)
				w.s = &s
				continue
			}
			at, ok := w.next()
			if !ok {
				break
			}
			w.end(at)
		}
		for _, r := range w.s.Pending {
			if Never(w.s, r.Spec) == nil {
				t.Fatalf("%s never started", r.ID)
			}
		}
	})
	if waited == 0 {
		t.Error("nothing ever waited for a planned start; the property proved nothing")
	}
}

// A planner that has seen much decides as one that has seen nothing.
func TestPropPlannerWithAPastAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: drawTimely(t), now: epoch}
		p := NewPlanner()
		for range 12 {
			got, want := p.Plan(w.s, w.now).All(), NewPlanner().Plan(w.s, w.now).All()
			for i := range want {
				if got[i].Group != want[i].Group || !got[i].Start.Equal(want[i].Start) || fmt.Sprint(got[i].Bundles) != fmt.Sprint(want[i].Bundles) {
					t.Fatalf("at %s: %+v with a past, %+v without", w.now, got[i], want[i])
				}
			}
			if rapid.Bool().Draw(t, "placed") {
				w.start(got)
			}
			switch at, ok := w.next(); {
			case ok && rapid.Bool().Draw(t, "on time"):
				if at.Before(w.now) { // it ran over
					at = w.now
				}
				w.end(at)
			case len(w.s.Holders) > 0 && rapid.Bool().Draw(t, "early"):
				s := *w.s
				s.Holders = slices.Clone(s.Holders)
				h := *s.Holders[0]
				h.Ends = w.now
				s.Holders[0] = &h
				w.s = &s
				w.end(w.now)
			default:
				w.now = w.now.Add(minutes(t, "late")) // what runs, runs over
			}
		}
	})
}
