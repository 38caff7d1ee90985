package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// mostShapes bounds how many kinds of request a mix tells apart, and mixParts is what
// their weights add up to.
const (
	mostShapes = 256
	mixParts   = 100_000
)

// mix is what the next request is expected to ask for.
type mix struct {
	key    string
	groups []mixGroup
	masks  []*class // who may use which nodes; a group refers to one by its index

	mu      sync.Mutex
	allowed [][]bool // see allows
	numbers map[string]int32
}

// mixGroup is all requests that want the same of devices, on the same nodes.
type mixGroup struct {
	gpus, share, gpuMem int64
	mask                int
	sizes               []mixSize // cpu and memory beside it
	weight              int64
}

type mixSize struct{ cpu, mem, weight int64 }

// kind is one kind of bundle, known by its key.
type kind struct {
	key   string
	class *class
	where string // equal for kinds that may use the same nodes
}

// weighed is a kind with its weight in a mix.
type weighed struct {
	*kind
	weight int64
}

func kindOf(s *Shape) *kind {
	c := newClass(&s.Bundle, &Request{Spec: api.GroupSpec{Pool: s.Pool, Wishes: api.Wishes{Where: s.Where}}})
	return &kind{key: c.key, class: c, where: labelsKey(c.labels) + whereKey(c.where) + fmt.Sprintf(" %q", c.pool)}
}

// derivedSteps is in how many parts the weights of a mix are told apart that nobody gave:
// one request more or less is then seldom another mix, for which every node is scored anew.
const derivedSteps = 50

// wantsDevices: what wants none is no part of a mix.
func (k *kind) wantsDevices() bool { return k.class.gpus > 0 || k.class.share > 0 }

// partsOf puts kinds in order and gives each its part of a mix, in so many steps. Those with
// none are left out.
func partsOf(kinds []weighed, steps int64) []weighed {
	slices.SortFunc(kinds, heaviest)
	kinds = kinds[:min(len(kinds), mostShapes)]
	var total int64
	for _, k := range kinds {
		total = satAdd(total, k.weight)
	}
	out := kinds[:0]
	for _, k := range kinds {
		if k.weight = int64(float64(k.weight)/float64(total)*float64(steps)) * (mixParts / steps); k.weight > 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, heaviest) // by their parts, so that equal ones are the same list
	return out
}

func heaviest(a, b weighed) int {
	if a.weight != b.weight {
		return cmp.Compare(b.weight, a.weight)
	}
	return cmp.Compare(a.key, b.key)
}

// newMix compiles kinds with their parts; nil if there are none.
func newMix(kinds []weighed) *mix {
	m := &mix{}
	type device struct {
		gpus, share, mem int64
		mask             int
	}
	var key strings.Builder
	groups, masks := map[device]int{}, map[string]int{}
	for _, k := range kinds {
		fmt.Fprintf(&key, "%s*%d;", k.key, k.weight)
		mask, ok := masks[k.where]
		if !ok {
			mask = len(m.masks)
			masks[k.where] = mask
			m.masks = append(m.masks, k.class)
		}
		of := device{k.class.gpus, k.class.share, k.class.gpuMem, mask}
		gi, ok := groups[of]
		if !ok {
			gi = len(m.groups)
			groups[of] = gi
			m.groups = append(m.groups, mixGroup{gpus: of.gpus, share: of.share, gpuMem: of.mem, mask: mask})
		}
		m.groups[gi].weight += k.weight
		m.groups[gi].sizes = append(m.groups[gi].sizes, mixSize{k.class.cpu, k.class.mem, k.weight})
	}
	if len(m.groups) == 0 {
		return nil
	}
	m.key = key.String()
	return m
}

// same reports whether two mixes are worth the same.
func (m *mix) same(other *mix) bool {
	if m == nil || other == nil {
		return m == nil && other == nil
	}
	return m.key == other.key
}

// mixFor is the mix of a snapshot: the one that it names, else what waits and what is
// placed, each request once for each kind of bundle that it has. However few there are, a
// whole device is always worth something to somebody.
func (m *memory) mixFor(s *Snapshot) *mix {
	if s.Mix != nil {
		if len(s.Mix) == len(m.given) && len(s.Mix) > 0 && &s.Mix[0] == &m.given[0] {
			return m.free.mix // the very same list
		}
		m.given, m.derived = s.Mix, nil
		return givenMix(s.Mix)
	}
	m.given = nil
	m.counts.follow(s)
	if m.counts.requests == 0 {
		m.derived = nil
		return nil
	}
	list := partsOf(m.counts.list(), derivedSteps)
	if m.derived != nil && slices.Equal(list, m.derived) {
		return m.free.mix
	}
	m.derived = list
	return newMix(list)
}

// MixOf is the mix for a snapshot after which shapes were asked for, with weights that say
// how much each counts still: in steps, so that one request more or less is seldom another
// mix. Equal shapes are the same list; nil: nobody asked for anything.
func MixOf(asked []Shape) []Shape {
	if len(asked) == 0 {
		return nil
	}
	one := wholeDevice()
	list := []weighed{{kind: kindOf(&one)}}
	from, sum := map[string]*Shape{list[0].key: &one}, int64(0)
	for i := range asked {
		k := kindOf(&asked[i])
		w := max(0, asked[i].Weight)
		switch sum = satAdd(sum, w); {
		case k.key == list[0].key:
			list[0].weight = satAdd(list[0].weight, w)
		case k.wantsDevices():
			from[k.key] = &asked[i]
			list = append(list, weighed{k, w})
		}
	}
	list[0].weight = satAdd(list[0].weight, 1+sum/4)
	var out []Shape
	for _, k := range partsOf(list, derivedSteps) {
		shape := *from[k.key]
		shape.Weight = k.weight
		out = append(out, shape)
	}
	return out
}

// wholeDevice is what is always worth something to somebody, however few ask for it.
func wholeDevice() Shape { return Shape{Bundle: api.Bundle{Resources: api.Resources{GPUs: 1}}} }

// givenMix is the mix that somebody names.
func givenMix(shapes []Shape) *mix {
	at := map[string]int{}
	var list []weighed
	for i := range shapes {
		k := kindOf(&shapes[i])
		if shapes[i].Weight <= 0 || !k.wantsDevices() {
			continue
		}
		n, ok := at[k.key]
		if !ok {
			n = len(list)
			at[k.key] = n
			list = append(list, weighed{kind: k})
		}
		list[n].weight = satAdd(list[n].weight, shapes[i].Weight)
	}
	return newMix(partsOf(list, mixParts))
}

// kindCounts is how many requests of a snapshot are of which kinds. It follows from one
// snapshot to the next by what is another one.
type kindCounts struct {
	requests int64
	by       map[*kind]int64
	of       map[*api.GroupSpec]*counted
	byKey    map[string]*kind // each kind is one
	one      *kind            // a whole device
	pending  []*Request       // that are counted, as the snapshot listed them
	holders  []*Holder
}

// counted is the kinds of a request, which are looked at once, and how often it is counted.
type counted struct {
	kinds []*kind
	times int64
}

func (c *kindCounts) follow(s *Snapshot) {
	if c.by == nil || len(c.byKey) > 4*(len(s.Pending)+len(s.Holders))+1024 {
		*c = kindCounts{by: map[*kind]int64{}, of: map[*api.GroupSpec]*counted{}, byKey: map[string]*kind{}}
		one := wholeDevice()
		c.one = c.same(kindOf(&one))
	}
	_, was, is := changedPart(c.pending, s.Pending)
	for _, r := range is {
		c.count(&r.Spec, 1)
	}
	for _, r := range was {
		c.count(&r.Spec, -1)
	}
	_, gone, come := changedPart(c.holders, s.Holders)
	for _, h := range come {
		c.count(h.Spec, 1)
	}
	for _, h := range gone {
		c.count(h.Spec, -1)
	}
	if len(was)+len(is) > 0 {
		c.pending = s.Pending
	}
	if len(gone)+len(come) > 0 {
		c.holders = s.Holders
	}
}

// changedPart is what is left of two lists without what they have in common at both ends,
// and how much that is at the beginning.
func changedPart[T comparable](a, b []T) (from int, was, is []T) {
	for from < len(a) && from < len(b) && a[from] == b[from] {
		from++
	}
	a, b = a[from:], b[from:]
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return from, a, b
}

// same is the one kind that equals k.
func (c *kindCounts) same(k *kind) *kind {
	if have := c.byKey[k.key]; have != nil {
		return have
	}
	c.byKey[k.key] = k
	return k
}

// count adds the kinds of a request, or with sign -1 takes them out.
func (c *kindCounts) count(spec *api.GroupSpec, sign int64) {
	if spec == nil {
		return
	}
	x := c.of[spec]
	if x == nil {
		x = &counted{}
		shapes := spec.Shapes()
		for i := range shapes {
			x.kinds = append(x.kinds, c.same(kindOf(&shapes[i])))
		}
		c.of[spec] = x
	}
	for _, k := range x.kinds {
		if c.by[k] += sign; c.by[k] == 0 {
			delete(c.by, k)
		}
	}
	c.requests += sign * int64(len(x.kinds))
	if x.times += sign; x.times == 0 {
		delete(c.of, spec)
	}
}

// list is the kinds that want devices.
func (c *kindCounts) list() []weighed {
	out := make([]weighed, 0, len(c.by)+1)
	one := 1 + c.requests/4
	for k, n := range c.by {
		switch {
		case k == c.one:
			one += n
		case k.wantsDevices():
			out = append(out, weighed{k, n})
		}
	}
	return append(out, weighed{c.one, one})
}
