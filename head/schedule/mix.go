package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// mostShapes bounds how many kinds of request a mix tells apart, and mixParts is what
// their weights add up to.
const (
	mostShapes = 256
	mixParts   = 100_000
)

// mostKinds bounds what one request adds to a mix.
const mostKinds = 8

// mix is what the next request is expected to ask for.
type mix struct {
	key    string
	groups []mixGroup
	masks  []*class // who may use which nodes; a group refers to one by its index
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
	key    string
	class  *class
	where  string // equal for kinds that may use the same nodes
	weight int64  // among those of a mix
}

func kindOf(s *Shape) *kind {
	c := newClass(&s.Bundle, &Request{Spec: api.GroupSpec{Pool: s.Pool, Wishes: api.Wishes{Where: s.Where}}})
	return &kind{key: c.key, class: c, where: labelsKey(c.labels) + whereKey(c.where) + fmt.Sprintf(" %q", c.pool)}
}

// derivedSteps is in how many parts the weights of a mix are told apart that nobody gave:
// one request more or less is then seldom another mix, for which every node is scored anew.
const derivedSteps = 50

// weighMix compiles kinds with their weights, in so many steps; nil if nothing in it wants devices.
func weighMix(kinds []*kind, steps int64) *mix {
	slices.SortFunc(kinds, func(a, b *kind) int { return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.key, b.key)) })
	kinds = kinds[:min(len(kinds), mostShapes)]
	var total int64
	for _, k := range kinds {
		total = satAdd(total, k.weight)
	}
	m := &mix{}
	type device struct {
		gpus, share, mem int64
		mask             int
	}
	var key strings.Builder
	groups, masks := map[device]int{}, map[string]int{}
	for _, k := range kinds {
		weight := int64(float64(k.weight)/float64(total)*float64(steps)) * (mixParts / steps)
		if weight == 0 {
			continue
		}
		fmt.Fprintf(&key, "%s*%d;", k.key, weight)
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
		m.groups[gi].weight += weight
		m.groups[gi].sizes = append(m.groups[gi].sizes, mixSize{k.class.cpu, k.class.mem, weight})
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
		m.given = s.Mix
		weights := map[string]*kind{}
		for i := range s.Mix {
			if s.Mix[i].Weight > 0 {
				add(weights, kindOf(&s.Mix[i]), s.Mix[i].Weight)
			}
		}
		return weighMix(slices.Collect(maps.Values(weights)), mixParts)
	}
	m.given = nil
	if len(m.kinds) > 4*(len(s.Pending)+len(s.Holders))+1024 {
		m.kinds = nil
	}
	if m.kinds == nil {
		m.kinds, m.byKind = map[*api.GroupSpec][]*kind{}, map[string]*kind{}
	}
	counts := map[*kind]int64{}
	requests := int64(0)
	for _, r := range s.Pending {
		requests += m.count(counts, &r.Spec)
	}
	for _, h := range s.Holders {
		if h.Spec != nil {
			requests += m.count(counts, h.Spec)
		}
	}
	if requests == 0 {
		return nil
	}
	weights := map[string]*kind{}
	for k, n := range counts {
		add(weights, k, n)
	}
	add(weights, kindOf(&Shape{Bundle: api.Bundle{Resources: api.Resources{GPUs: 1}}}), 1+requests/4)
	return weighMix(slices.Collect(maps.Values(weights)), derivedSteps)
}

// count adds the kinds of a request, which are looked at once.
func (m *memory) count(counts map[*kind]int64, spec *api.GroupSpec) int64 {
	kinds, ok := m.kinds[spec]
	if !ok {
		shapes := shapesOf(spec)
		for i := range shapes {
			k := kindOf(&shapes[i])
			if have := m.byKind[k.key]; have != nil {
				k = have
			} else {
				m.byKind[k.key] = k
			}
			kinds = append(kinds, k)
		}
		m.kinds[spec] = kinds
	}
	for _, k := range kinds {
		counts[k]++
	}
	return int64(len(kinds))
}

// add adds to the weight of a kind, if it wants devices.
func add(weights map[string]*kind, k *kind, weight int64) {
	if k.class.gpus == 0 && k.class.share == 0 {
		return
	}
	have := weights[k.key]
	if have == nil {
		have = &kind{key: k.key, class: k.class, where: k.where}
		weights[k.key] = have
	}
	have.weight = satAdd(have.weight, weight)
}

// shapesOf is what a request asks of one node at a time.
func shapesOf(spec *api.GroupSpec) []Shape {
	var out []Shape
	for i := range spec.Bundles {
		b := &spec.Bundles[i]
		if i > 0 && alike(&spec.Bundles[i-1], b) {
			continue
		}
		if len(out) == mostKinds {
			break
		}
		shape := Shape{Bundle: *b, Where: spec.Where, Pool: spec.Pool}
		if n := spec.PerNode; n > 1 && n <= MaxGPUs && b.GPUs <= MaxGPUs && b.Share == 0 {
			shape.Bundle.GPUs *= n
		}
		out = append(out, shape)
	}
	return out
}
