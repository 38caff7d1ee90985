package schedule

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Limits of a placement group. They are far above what a cluster has; they keep sums
// within an integer and a record within its size.
const (
	MaxBundles    = 10_000
	MaxNameLength = 128 // bytes of a group's, pool's, tenant's or queue's name
	MaxLabels     = 32  // of one bundle
	MaxLabelBytes = 256 // of a key or a value
	MaxCPU        = unit.MilliCPU(1_000_000_000)
	MaxMemory     = unit.Bytes(1 << 50)
	MaxGPUs       = 4096 // of one bundle
	MaxPriority   = 1_000_000
	// Times that requests and reservations may name are within these years: those that
	// nanoseconds can count, with room for what is added to them.
	MinYear, MaxYear = 1970, 2200
)

// maxFieldErrors bounds the answer to a spec that is wrong all over.
const maxFieldErrors = 20

// Validate says what is wrong with a group's spec, whatever the cluster has; nil if
// nothing is. Pointers are relative to the spec.
func Validate(spec api.GroupSpec) []api.FieldError {
	v := &checker{}
	v.name("/name", spec.Name)
	v.name("/pool", spec.Pool)
	v.name("/tenant", spec.Tenant)
	v.name("/queue", spec.Queue)
	switch spec.Strategy {
	case "", api.Pack, api.Spread, api.StrictPack, api.StrictSpread:
	default:
		v.add("/strategy", "unknown strategy %.40q: use PACK, SPREAD, STRICT_PACK or STRICT_SPREAD", spec.Strategy)
	}
	if spec.Priority > MaxPriority || spec.Priority < -MaxPriority {
		v.add("/priority", "%d is not within ±%d", spec.Priority, MaxPriority)
	}
	switch {
	case len(spec.Bundles) == 0:
		v.add("/bundles", "a group needs at least one bundle")
	case len(spec.Bundles) > MaxBundles:
		v.add("/bundles", "%d bundles are more than %d", len(spec.Bundles), MaxBundles)
		return v.errs // one error for each of them would say no more
	}
	v.perNode(&spec)
	v.where(spec.Where)
	v.level(&spec)
	v.roles(&spec)
	v.times(&spec)
	v.uses(&spec)
	v.name("/reservation", spec.Reservation)
	for i := range spec.Bundles {
		v.bundle(fmt.Sprintf("/bundles/%d", i), &spec.Bundles[i])
	}
	return v.errs
}

func (v *checker) perNode(s *api.GroupSpec) {
	n := s.PerNode
	switch {
	case n == 0:
	case n < 0 || n > MaxBundles:
		v.add("/perNode", "%d bundles on each node: 1 to %d, or 0 for what fits", n, MaxBundles)
	case int64(len(s.Bundles))%n != 0:
		v.add("/perNode", "%d bundles are not a multiple of %d on each node", len(s.Bundles), n)
	case s.Strategy == api.StrictPack && int64(len(s.Bundles)) != n, s.Strategy == api.StrictSpread && n != 1:
		v.add("/perNode", "%d on each node and %s contradict each other; leave the strategy out", n, s.Strategy)
	case slices.ContainsFunc(s.Bundles[1:], func(b api.Bundle) bool { return bundleKey(&b) != bundleKey(&s.Bundles[0]) }):
		v.add("/perNode", "goes with equal bundles only")
	}
}

// level checks the form of a wish for a level; Never says whether it is declared.
func (v *checker) level(s *api.GroupSpec) {
	v.name("/level", s.Level)
	switch {
	case s.LevelWait == nil:
	case s.Level == "":
		v.add("/levelWait", "a wait for a level without a level: name one, as rack")
	case *s.LevelWait < 0:
		v.add("/levelWait", "%s: a wait cannot be negative", *s.LevelWait)
	}
	if s.WholeNodes && slices.ContainsFunc(s.Bundles, func(b api.Bundle) bool { return b.Share > 0 }) {
		v.add("/wholeNodes", "goes with whole devices, not with a share of one")
	}
}

// times: how long a request says that it runs.
func (v *checker) times(s *api.GroupSpec) {
	if s.TimeLimit < 0 {
		v.add("/timeLimit", "%s: a time limit is positive", time.Duration(s.TimeLimit))
	}
	if s.MaxWait < 0 {
		v.add("/maxWait", "%s: a wait cannot be negative", s.MaxWait)
	}
	if y := s.Deadline.Year(); !s.Deadline.IsZero() && (y < MinYear || y > MaxYear) {
		v.add("/deadline", "the year %d is not within %d to %d; a deadline is a time as 2030-05-01T12:00:00Z", y, MinYear, MaxYear)
	}
	switch {
	case s.Estimate < 0:
		v.add("/estimate", "%s: an estimate is positive", time.Duration(s.Estimate))
	case s.TimeLimit > 0 && s.Estimate > s.TimeLimit:
		v.add("/estimate", "%s is more than the time limit of %s, which would end it before", time.Duration(s.Estimate), time.Duration(s.TimeLimit))
	}
}

// uses: what each bundle takes of capacities.
func (v *checker) uses(s *api.GroupSpec) {
	if len(s.Uses) > MaxLabels {
		v.add("/uses", "%d capacities are more than %d", len(s.Uses), MaxLabels)
		return
	}
	for i, u := range s.Uses {
		at := "/uses/" + u.Of
		switch {
		case u.Of == "" || len(u.Of) > MaxNameLength || !printable(u.Of):
			v.add("/uses", "%.40q: names have 1 to %d printable bytes", u.Of, MaxNameLength)
		case u.N <= 0:
			v.add(at, "%d: use more than nothing, or leave it out", u.N)
		case i > 0 && s.Uses[i-1].Of >= u.Of:
			v.add(at, "names each capacity once, in order of names")
		}
	}
}

type checker struct{ errs []api.FieldError }

func (v *checker) add(pointer, format string, args ...any) {
	if len(v.errs) < maxFieldErrors {
		v.errs = append(v.errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
}

func (v *checker) name(pointer, s string) {
	if len(s) > MaxNameLength {
		v.add(pointer, "%d bytes are more than %d", len(s), MaxNameLength)
		return
	}
	if !printable(s) {
		v.add(pointer, "%q has characters that do not print", s)
	}
}

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return false
		}
	}
	return true
}

func (v *checker) bundle(at string, b *api.Bundle) {
	v.within(at+"/cpu", int64(b.CPU), int64(MaxCPU), "milli-CPU")
	v.within(at+"/memory", int64(b.Memory), int64(MaxMemory), "bytes")
	v.within(at+"/gpus", b.GPUs, MaxGPUs, "GPUs")
	v.within(at+"/share", b.Share, wholeShare, "thousandths of one GPU")
	v.within(at+"/gpuMemory", int64(b.GPUMemory), int64(MaxMemory), "bytes")
	if b.GPUs > 0 && b.Share > 0 {
		v.add(at+"/share", "gpus asks for whole devices and share for a part of one; use one of them")
	}
	if b.GPUMemory > 0 && b.GPUs == 0 && b.Share == 0 {
		v.add(at+"/gpuMemory", "memory of a GPU without a GPU: set share or gpus too")
	}
	if (b.Resources == api.Resources{}) {
		v.add(at, "the bundle asks for nothing; ask for some cpu, memory or gpus")
	}
	if len(b.Labels) > MaxLabels {
		v.add(at+"/labels", "%d labels are more than %d", len(b.Labels), MaxLabels)
		return
	}
	for _, k := range sortedKeys(b.Labels) {
		if k == "" || len(k) > MaxLabelBytes || len(b.Labels[k]) > MaxLabelBytes || !printable(k) || !printable(b.Labels[k]) {
			v.add(at+"/labels", "label %.40q: keys have 1 to %d printable bytes, values at most as many", k, MaxLabelBytes)
		}
	}
}

func (v *checker) within(pointer string, have, most int64, what string) {
	if have < 0 {
		v.add(pointer, "%d %s: a request cannot be negative", have, what)
	} else if have > most {
		v.add(pointer, "%d %s are more than %d", have, what, most)
	}
}
