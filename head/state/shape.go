package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Shape is one kind of bundle with devices that was asked for, and how much of it counts
// still: each request adds to it when it is made, and half of it is forgotten after each
// half-life. The scheduler keeps room for what is asked for often.
type Shape struct {
	ID     string          `json:"id"` // what is asked for, in words
	Bundle api.Bundle      `json:"bundle"`
	Where  []api.LabelRule `json:"where,omitempty"`
	Pool   string          `json:"pool,omitempty"`
	Weight int64           `json:"weight"` // as of At, one request is shapeUnit
	At     int64           `json:"at"`     // ns
}

const (
	// shapeUnit keeps a request that is many half-lives old apart from none.
	shapeUnit = 1 << 20
	// mostShape keeps sums of weights within an integer.
	mostShape = 1 << 50
)

// keptShapes bounds the kinds; of more those go that count least.
var keptShapes = 256

// asked notes what a request asks for.
func (t *tx) asked(spec *api.GroupSpec) {
	for _, s := range spec.Shapes() {
		if s.Bundle.GPUs <= 0 && s.Bundle.Share <= 0 {
			continue
		}
		w := Shape{ID: shapeID(&s), Bundle: s.Bundle, Where: s.Where, Pool: s.Pool}
		if old := first[Shape](t.records, tShape, "id", w.ID); old != nil {
			w = *old
		} else {
			t.forgetShapes()
		}
		w.Weight, w.At = min(w.at(t.now, t.Settings().halfLife())+shapeUnit, mostShape), max(w.At, t.now)
		t.put(tShape, &w)
	}
}

// at is what is left of its weight at a time.
func (s *Shape) at(now, halfLife int64) int64 { return decay(s.Weight, now-s.At, halfLife) }

// forgetShapes makes room for another kind.
func (t *tx) forgetShapes() {
	list := all[Shape](t.records, tShape, "id")
	if len(list) < keptShapes {
		return
	}
	half := t.Settings().halfLife()
	t.drop(tShape, slices.MinFunc(list, func(a, b *Shape) int {
		return cmp.Or(cmp.Compare(a.at(t.now, half), b.at(t.now, half)), cmp.Compare(a.ID, b.ID))
	}))
}

// shapeID is equal for bundles that any node serves alike.
func shapeID(s *api.Shape) string {
	var b strings.Builder
	r := &s.Bundle.Resources
	fmt.Fprintf(&b, "%d gpus %d/1000 of %d bytes, %d mcpu, %d bytes, pool %q", r.GPUs, r.Share, r.GPUMemory, r.CPU, r.Memory, s.Pool)
	for _, k := range sortedKeys(s.Bundle.Labels) {
		fmt.Fprintf(&b, " %q=%q", k, s.Bundle.Labels[k])
	}
	for i := range s.Where {
		fmt.Fprintf(&b, " %q %s %q", s.Where[i].Key, s.Where[i].Op, s.Where[i].Values)
	}
	return b.String()
}

// Asked are the shapes that requests asked for, in order of their ids, each with what it
// counts still beside the others.
func (v *View) Asked() []api.Shape {
	list := all[Shape](v.records, tShape, "id")
	var last int64 // all decay alike, so what they are beside each other depends on no later time
	for _, s := range list {
		last = max(last, s.At)
	}
	half := v.Settings().halfLife()
	out := make([]api.Shape, len(list))
	for i, s := range list {
		out[i] = api.Shape{Bundle: s.Bundle, Where: s.Where, Pool: s.Pool, Weight: s.at(last, half)}
	}
	return out
}
