package schedule

import (
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// constraint is one thing that a request insists on beside its amounts.
type constraint struct {
	name string
	// drop takes it out of a request, and reports whether it was there.
	drop func(r *Request) bool
}

// constraints in the order in which they are named.
var constraints = []constraint{
	{"pool", func(r *Request) bool {
		had := r.Spec.Pool != ""
		r.Spec.Pool = ""
		return had
	}},
	{"labels", func(r *Request) bool {
		had := false
		r.Spec.Bundles = slices.Clone(r.Spec.Bundles)
		for i := range r.Spec.Bundles {
			had = had || len(r.Spec.Bundles[i].Labels) > 0
			r.Spec.Bundles[i].Labels = nil
		}
		return had
	}},
	{"where", func(r *Request) bool {
		had := len(r.Spec.Where) > 0
		r.Spec.Where = nil
		return had
	}},
	{"excluded nodes", func(r *Request) bool {
		had := len(r.Avoid) > 0
		r.Avoid = nil
		return had
	}},
	{"whole nodes", func(r *Request) bool {
		had := r.Spec.WholeNodes
		r.Spec.WholeNodes = false
		return had
	}},
	{"level", func(r *Request) bool {
		had := r.Spec.Level != ""
		r.Spec.Level, r.Spec.LevelWait = "", nil
		return had
	}},
	{"per node", func(r *Request) bool {
		had := r.Spec.PerNode > 0
		r.Spec.PerNode = 0
		return had
	}},
	{"strategy", func(r *Request) bool {
		had := r.Spec.Strategy == api.StrictPack || r.Spec.Strategy == api.StrictSpread
		if had {
			r.Spec.Strategy = api.Pack
		}
		return had
	}},
}

// linkHealth is the one constraint that comes with another: that the links between whole
// nodes are well.
const linkHealth = "link health"

// fitsBut reports whether a request would fit now without one of its constraints. It has to
// be there.
func (x *explainer) fitsBut(r *Request, name string) bool {
	if name == linkHealth {
		if !r.Spec.WholeNodes || x.free.links == nil {
			return false
		}
		links := x.free.links
		x.free.links = nil
		fits := place(x.free, newDemand(r, x.now)).spots != nil
		x.free.links = links
		return fits
	}
	for i := range constraints {
		if less := *r; constraints[i].name == name && constraints[i].drop(&less) {
			return place(x.free, newDemand(&less, x.now)).spots != nil
		}
	}
	return false
}
