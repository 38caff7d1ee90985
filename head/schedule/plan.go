package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Plan decides every pending request of the snapshot, in the order in which it looked
// at them. A gang gets a node for each of its bundles or nothing (P1), a device never
// gets a second owner (P2), and what waits says why (P7). The result depends on the
// contents of the snapshot, never on the order in which they are listed, so two heads
// decide alike. now is the time of the cycle; nothing depends on it until planned
// starts exist, and it is part of the interface because they will.
//
// A request that does not fit now holds up no later one that does.
func Plan(s *Snapshot, now time.Time) []Decision {
	_ = now

	// 1. Snapshot: an overlay of what is free, which this cycle alone writes to, so that
	// each decision sees what earlier ones took.
	free := newOverlay(s.Nodes)

	// 2. Order: priority, then seniority.
	order := slices.Clone(s.Pending)
	slices.SortFunc(order, byTurn)

	// 3. Place: whole or waiting. Free capacity only shrinks within a cycle, so what
	// failed once need not be tried again for an equal request.
	decisions := make([]Decision, len(order))
	failed := map[string]bool{}
	var placed []placedNow
	for i, r := range order {
		decisions[i].Group = r.ID
		key := demandKey(r)
		if failed[key] {
			continue
		}
		got := place(free, newDemand(r))
		if got.spots == nil {
			failed[key] = true
			continue
		}
		decisions[i].Bundles = free.commit(got.spots)
		placed = append(placed, placedNow{request: order[i], at: decisions[i].Bundles})
	}

	// 4. Explain: against what is left at the end of the cycle, with the groups placed
	// in it among the holders. Equal requests share their explanation.
	if len(placed) < len(order) {
		x := newExplainer(s, free, placed)
		told := map[string][]api.Reason{}
		for i := range order {
			if decisions[i].Bundles != nil {
				continue
			}
			key := demandKey(order[i])
			if told[key] == nil {
				told[key] = x.explain(order[i])
			}
			decisions[i].Reasons = slices.Clone(told[key])
		}
	}
	return decisions
}

// placedNow is a group that this cycle placed.
type placedNow struct {
	request *Request
	at      []api.Placed
}

// byTurn is the one comparator of requests: higher priority, then the older
// submission by log index (never by a clock), then the id.
func byTurn(a, b *Request) int {
	return cmp.Or(
		cmp.Compare(b.Spec.Priority, a.Spec.Priority),
		cmp.Compare(a.Seq, b.Seq),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(demandKey(a), demandKey(b)),
	)
}

// demandKey is equal for requests that ask for the same thing.
func demandKey(r *Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q", strategyOf(r.Spec.Strategy), r.Spec.Pool, sortedCopy(r.Keep))
	if r.Spec.PerNode > 0 {
		fmt.Fprintf(&b, " %d a node", r.Spec.PerNode)
	}
	if len(r.Avoid) > 0 {
		fmt.Fprintf(&b, " but %q", sortedKeys(r.Avoid))
	}
	last, run := "", 0
	for i := range r.Spec.Bundles {
		key := last
		if i == 0 || !alike(&r.Spec.Bundles[i-1], &r.Spec.Bundles[i]) {
			key = bundleKey(&r.Spec.Bundles[i])
		}
		if key != last && run > 0 {
			fmt.Fprintf(&b, " %d*%s", run, last)
			run = 0
		}
		last = key
		run++
	}
	if run > 0 {
		fmt.Fprintf(&b, " %d*%s", run, last)
	}
	return b.String()
}

// alike is a quick look before two keys are made; large groups repeat one bundle.
func alike(a, b *api.Bundle) bool {
	return a.Resources == b.Resources && maps.Equal(a.Labels, b.Labels)
}

// bundleKey is equal for bundles that any node serves alike.
func bundleKey(b *api.Bundle) string {
	var s strings.Builder
	fmt.Fprintf(&s, "{%d %d %d %d %d", b.CPU, b.Memory, b.GPUs, b.Share, b.GPUMemory)
	for _, k := range sortedKeys(b.Labels) {
		fmt.Fprintf(&s, " %q=%q", k, b.Labels[k])
	}
	s.WriteByte('}')
	return s.String()
}

func strategyOf(s api.Strategy) api.Strategy {
	if s == "" {
		return api.Pack
	}
	return s
}

func sortedCopy(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
