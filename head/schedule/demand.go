package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// demandOf is the request as the placement looks at it; equal requests share one.
func (m *memory) demandOf(r *Request, now time.Time) *demand {
	known := &m.demands
	if r.levelOpen(now) {
		known = &m.opened
	}
	if d := (*known)[r]; d != nil {
		return d
	}
	d := newDemand(r, now)
	if have := m.byKey[d.key]; have != nil {
		d = have
	} else {
		m.byKey[d.key] = d
	}
	(*known)[r] = d
	return d
}

// class is a kind of bundle: those of a request that any node serves alike.
type class struct {
	cpu, mem, gpus, share, gpuMem int64
	labels                        map[string]string
	where                         []api.LabelRule
	pool                          string
	whole                         bool  // on nodes of which nothing else is held
	onNode                        int64 // at most so many on a node, with exactly so many or none; 0: what fits
	exactly                       bool
	barred                        []string // models that it may not use
	key                           string   // equal for classes that any node has equal room for
	bundles                       []int    // their indices in the request, ascending
}

// demand is a request as the placement looks at it.
type demand struct {
	key      string
	group    string   // of the first that asked for it
	classes  []*class // the most demanding first
	total    int      // bundles
	strategy api.Strategy
	perNode  int64 // bundles on each node that is used, exactly; 0: what fits
	pool     string
	keep     map[string]bool // node ids to prefer
	avoid    map[string]string
	whole    bool
	level    string // that all are to share; "": any
	required bool   // and nothing else will do, now
	bundles  []api.Bundle
	roles    []api.Role
	least    int64
	request  *Request
	barred   []string                // see class
	within   func([]api.Bundle) bool // with roles: whether its quota allows so many; nil: it does
	now      time.Time

	summed *amount // what all bundles ask for together

	failed   failure
	failedIn uint64 // the cycle in which there was no room for it
	hopeless hopeless
}

// failure is when a demand did not fit last, so that it is not tried again in vain.
type failure struct {
	known          bool
	proven         bool
	version, grown uint64
	links          uint64
}

// levelOpen reports whether the request has waited for its preferred level so long that a
// worse one is taken.
func (r *Request) levelOpen(now time.Time) bool {
	wait := r.Spec.LevelWait
	return r.Spec.Level != "" && wait != nil && (*wait <= 0 || !r.Since.IsZero() && now.Sub(r.Since) >= time.Duration(*wait))
}

func newDemand(r *Request, now time.Time) *demand {
	d := &demand{
		group: r.ID, total: len(r.Spec.Bundles), strategy: strategyOf(r.Spec.Strategy), perNode: r.Spec.PerNode, pool: r.Spec.Pool,
		keep: make(map[string]bool, len(r.Keep)), avoid: r.Avoid, whole: r.Spec.WholeNodes, level: r.Spec.Level,
		bundles: r.Spec.Bundles, roles: r.Spec.Roles, least: r.Spec.Min, request: r, now: now,
	}
	d.required = d.level != "" && !r.levelOpen(now)
	d.key = demandKey(r)
	if d.level != "" && !d.required {
		d.key += " open"
	}
	for _, id := range r.Keep {
		d.keep[id] = true
	}
	byKey := map[string]*class{}
	key := ""
	for i := range r.Spec.Bundles {
		b := &r.Spec.Bundles[i]
		if i == 0 || !alike(&r.Spec.Bundles[i-1], b) {
			key = bundleKey(b)
		}
		c := byKey[key]
		if c == nil {
			c = newClass(b, r)
			byKey[key] = c
			d.classes = append(d.classes, c)
		}
		c.bundles = append(c.bundles, i)
	}
	slices.SortStableFunc(d.classes, moreDemanding)
	d.summed = new(d.sum())
	return d
}

// bar keeps the demand off models of devices.
func (d *demand) bar(models []string) *demand {
	if len(models) == 0 {
		return d
	}
	key := fmt.Sprintf(" but %q", models)
	d.barred = models
	d.key += key
	for _, c := range d.classes {
		c.barred = models
		c.key += key
	}
	return d
}

// newClass is the class of a bundle of the request.
func newClass(b *api.Bundle, r *Request) *class {
	c := &class{
		cpu: max(0, int64(b.CPU)), mem: max(0, int64(b.Memory)), gpus: max(0, b.GPUs),
		share: max(0, b.Share), gpuMem: max(0, int64(b.GPUMemory)), labels: b.Labels,
		where: r.Spec.Where, pool: r.Spec.Pool, whole: r.Spec.WholeNodes,
	}
	switch {
	case r.Spec.PerNode > 0:
		c.onNode, c.exactly = r.Spec.PerNode, true
	case r.Spec.Strategy == api.StrictSpread:
		c.onNode = 1
	}
	c.key = fmt.Sprintf("%s %q%s %v %d %v", bundleKey(b), c.pool, whereKey(c.where), c.whole, c.onNode, c.exactly)
	return c
}

// moreDemanding orders classes: what is hardest to find a place for comes first.
func moreDemanding(a, b *class) int {
	return cmp.Or(
		cmp.Compare(b.gpus, a.gpus),
		cmp.Compare(b.share, a.share),
		cmp.Compare(b.gpuMem, a.gpuMem),
		cmp.Compare(b.mem, a.mem),
		cmp.Compare(b.cpu, a.cpu),
		cmp.Compare(len(b.labels), len(a.labels)),
	)
}

// serves reports whether the node may take bundles of the class at all.
func (d *demand) serves(n *nodeState, c *class) bool {
	return c.mayUse(n) && !d.avoids(n)
}

func (d *demand) avoids(n *nodeState) bool {
	_, ok := d.avoid[n.id]
	return ok
}

func (d *demand) inPool(n *nodeState) bool { return d.pool == "" || n.pool == d.pool }

func (c *class) inPool(n *nodeState) bool { return c.pool == "" || n.pool == c.pool }

// mayUse reports whether the node is there for the class, whatever it has left.
func (c *class) mayUse(n *nodeState) bool {
	return n.ready && n.held == "" && c.inPool(n) && hasLabels(n, c) && (!c.whole || n.idle())
}

func hasLabels(n *nodeState, c *class) bool {
	for k, v := range c.labels {
		if have, ok := n.labels[k]; !ok || have != v {
			return false
		}
	}
	for i := range c.where {
		if !meets(n.labels, &c.where[i]) {
			return false
		}
	}
	return true
}

// demandKey is equal for requests that ask for the same thing.
func demandKey(r *Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q", strategyOf(r.Spec.Strategy), r.Spec.Pool, sortedCopy(r.Keep))
	if r.Spec.WholeNodes {
		b.WriteString(" whole")
	}
	if r.Spec.Level != "" {
		fmt.Fprintf(&b, " in one %q", r.Spec.Level)
		if r.Spec.LevelWait != nil {
			fmt.Fprintf(&b, " for %d", int64(*r.Spec.LevelWait))
		}
	}
	b.WriteString(whereKey(r.Spec.Where))
	for _, role := range r.Spec.Roles {
		fmt.Fprintf(&b, " %q %d to %d", role.Name, role.Min, role.Bundles)
	}
	if r.Spec.Min > 0 {
		fmt.Fprintf(&b, " at least %d", r.Spec.Min)
	}
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
func alike(a, b *api.Bundle) bool { return a.Equal(b) }

// bundleKey is equal for bundles that any node serves alike.
func bundleKey(b *api.Bundle) string {
	var s strings.Builder
	fmt.Fprintf(&s, "{%d %d %d %d %d", b.CPU, b.Memory, b.GPUs, b.Share, b.GPUMemory)
	s.WriteString(labelsKey(b.Labels))
	s.WriteByte('}')
	return s.String()
}

func labelsKey(labels map[string]string) string {
	var s strings.Builder
	for _, k := range sortedKeys(labels) {
		fmt.Fprintf(&s, " %q=%q", k, labels[k])
	}
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
