package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// memory is what a Planner keeps between cycles. All of it can be had again from a
// snapshot.
type memory struct {
	demands map[*Request]*demand
	byKey   map[string]*demand
}

// keepRequests forgets what is known of requests that wait no longer.
func (m *memory) keepRequests(pending []*Request) {
	if m.demands == nil || len(m.demands) > 2*len(pending)+64 {
		m.demands, m.byKey = map[*Request]*demand{}, map[string]*demand{}
	}
}

// demandOf is the request as the placement looks at it; equal requests share one.
func (m *memory) demandOf(r *Request) *demand {
	if d := m.demands[r]; d != nil {
		return d
	}
	key := demandKey(r)
	d := m.byKey[key]
	if d == nil {
		d = newDemand(r)
		m.byKey[key] = d
	}
	m.demands[r] = d
	return d
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
