package state

import (
	"math"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// What is expected of requests that say nothing.
const (
	runsAsked     = 5
	defaultExpect = 24 * time.Hour
)

// Past is how long the last jobs of one name, tenant and user held what they ran on.
type Past struct {
	ID  string  `json:"id"`
	Ran []int64 `json:"ran"` // ns, at most runsAsked, the oldest first
	Seq uint64  `json:"seq"` // index of the last
}

func pastID(tenant, user, name string) string { return tenant + "/" + user + "/" + name }

// past notes how long a job ran that ended by itself. The names that were not used for
// longest are forgotten.
func (t *tx) past(j *Job, g *Group) {
	ran := int64(g.Held(t.now))
	if ran <= 0 || j.Started == 0 || j.State != api.Succeeded && j.State != api.Failed {
		return
	}
	p := Past{ID: pastID(j.Spec.Tenant, j.User, j.Spec.Name)}
	if old := first[Past](t.records, tPast, "id", p.ID); old != nil {
		p.Ran = slices.Clone(old.Ran)
	} else {
		t.meta.Pasts++
	}
	p.Ran, p.Seq = append(p.Ran, ran), t.index
	p.Ran = p.Ran[max(0, len(p.Ran)-runsAsked):]
	t.put(tPast, &p)
	if t.meta.Pasts > int64(keptPast) {
		if old := first[Past](t.records, tPast, "seq"); old != nil {
			t.drop(tPast, old)
			t.meta.Pasts--
		}
	}
}

// expectSized makes what is still expected of a group go with its size; a time limit ends it all the same.
func (t *tx) expectSized(g *Group, from, to int64) {
	held := int64(g.Held(t.now))
	if from <= 0 || to <= 0 || from == to || g.Expect <= held {
		return
	}
	left := int64(plan.WithRanks(time.Duration(g.Expect-held), from, to))
	g.Expect = held + min(left, math.MaxInt64-held)
	if limit := int64(g.Spec.TimeLimit); limit > 0 {
		g.Expect = min(g.Expect, limit)
	}
	t.put(tGroup, g)
}

func (t *tx) expect(g *Group) int64 { return int64(t.Expect(g)) }

// Expect is how long a group would be expected to hold what it asks for: as it says itself,
// else what nine of ten of the last runs of that name needed at most, else a day.
func (v *View) Expect(g *Group) time.Duration {
	switch {
	case g.Spec.Estimate > 0:
		return g.Spec.Estimate.D()
	case g.Spec.TimeLimit > 0:
		return g.Spec.TimeLimit.D()
	}
	p := first[Past](v.records, tPast, "id", pastID(g.Spec.Tenant, g.User, g.Spec.Name))
	if p == nil || len(p.Ran) == 0 {
		return defaultExpect
	}
	ran := slices.Sorted(slices.Values(p.Ran))
	return time.Duration(ran[(len(ran)*9+9)/10-1]) // the nearest rank
}
