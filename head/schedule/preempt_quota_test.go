package schedule

import (
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// heldByTenant gives a holder a tenant.
func heldByTenant(h Holder, tenant string) Holder {
	h.Spec.Tenant = tenant
	return h
}

func limitedTo(of string, n int64) *Queues {
	return &Queues{List: []*api.Queue{
		{Name: "a", Tenant: true, Limit: api.Amounts{{Of: of, N: 1000 * n}}}, {Name: "b", Tenant: true},
	}}
}

// A group whose room and quota are both its victims' keeps its claim while they leave: they
// are charged until they have left. A claim that its quota does not allow even then is
// given up.
func TestClaimOnTheQuotaOfVictims(t *testing.T) {
	for name, most := range map[string]int64{"kept": 2, "lowered": 1} {
		t.Run(name, func(t *testing.T) {
			n := aNode("n").gpus(2, 72)
			low := heldByTenant(runs("low", &n, 0, 0, 1), "a")
			high := gang("high", 2, gpus(1)).priority(5).of("a", "")
			s := clusterOf([]*nodeBuilder{&n}).heldBy(low).pending(high)
			s.Queues = limitedTo("gpu", 2)
			r := plan(s)
			if got := victimNames(r); !slices.Equal(got, []string{"low"}) {
				t.Fatalf("victims %v", got)
			}

			// As the state stands after the entry.
			low.LeavingFor = "high"
			high.request.Claim, high.request.Leaving = r.Evictions[0].Claim, []string{low.Group}
			s = clusterOf([]*nodeBuilder{&n}).heldBy(low).pending(high)
			s.Queues = limitedTo("gpu", most)
			r = plan(s)
			if kept := len(r.Unclaims) == 0; kept != (most == 2) || len(r.Evictions) > 0 {
				t.Errorf("unclaims %+v, evictions %+v", r.Unclaims, r.Evictions)
			}
		})
	}
}

// A victim that only shrinks goes on being charged for what it keeps.
func TestClaimOnTheQuotaOfShrinking(t *testing.T) {
	for keeps, kept := range map[int64]bool{1: true, 2: false} {
		n := aNode("n").gpus(3, 72)
		low := heldByTenant(runs("low", &n, 0, 0, 1, 2), "a")
		low.Bundles = []Held{{Node: low.Bundles[0].Node, Devices: low.Bundles[0].Devices[:1]}, {Node: low.Bundles[0].Node, Devices: low.Bundles[0].Devices[1:2]}, {Node: low.Bundles[0].Node, Devices: low.Bundles[0].Devices[2:]}}
		low.LeavingFor, low.Keeps = "high", keeps
		high := gang("high", 2, gpus(1)).priority(5).of("a", "")
		for _, g := range n.node.GPUs[1:] {
			high.request.Claim = append(high.request.Claim, api.Placed{Bundle: int64(len(high.request.Claim)), Node: n.node.ID, Devices: []string{g.UUID}})
		}
		high.request.Leaving = []string{low.Group}
		s := clusterOf([]*nodeBuilder{&n}).heldBy(low).pending(high)
		s.Queues = limitedTo("gpu", 3)
		if r := plan(s); (len(r.Unclaims) == 0) != kept {
			t.Errorf("keeps %d: unclaims %+v", keeps, r.Unclaims)
		}
	}
}

// Nobody is ended for devices of a model that the quota of who asks does not allow.
func TestNoPreemptionForABarredModel(t *testing.T) {
	h, x := aNode("h").gpus(1, 72).model("H"), aNode("x").gpus(1, 72).model("X")
	lowH, lowX := runs("low-h", &h, 0, 0), runs("low-x", &x, 1, 0)
	high := gang("high", 1, gpus(1)).priority(5).of("a", "")
	s := clusterOf([]*nodeBuilder{&h, &x}).heldBy(lowH, lowX).pending(high)
	s.Queues = limitedTo("gpu:H", 0)
	if got := victimNames(plan(s)); !slices.Equal(got, []string{"low-x"}) {
		t.Errorf("victims %v", got)
	}
}

// A group that its quota keeps out does not stand for an equal one of another tenant.
func TestQuotaOfOneTenantHidesNoOther(t *testing.T) {
	n := aNode("n").gpus(2, 72)
	low := runs("low", &n, 0, 0, 1)
	s := clusterOf([]*nodeBuilder{&n}).heldBy(low).
		pending(gang("over", 2, gpus(1)).priority(6).of("a", ""), gang("high", 2, gpus(1)).priority(5).of("b", ""))
	s.Queues = limitedTo("gpu", 1)
	r := plan(s)
	if got := victimNames(r); !slices.Equal(got, []string{"low"}) || r.Evictions[0].Preemptor != "high" {
		t.Errorf("victims %v, %+v", got, r.Evictions)
	}
}

// What somebody uses of what they do not lend is kept for them again once they have left
// for a claim: nobody starts on it meanwhile, or the claim could not come true.
func TestClaimLeavesWhatIsNotLent(t *testing.T) {
	for lends, starts := range map[int64]bool{0: false, 1: true} {
		n := aNode("n").gpus(3, 72)
		own := heldByTenant(runs("own", &n, 0, 0), "keeper")
		own.LeavingFor = "high"
		high, low := gang("high", 2, gpus(1)).priority(5).of("b", ""), gang("low", 1, gpus(1)).of("b", "")
		high.request.Spec.Preemptible, low.request.Spec.Preemptible = true, true
		for _, g := range n.node.GPUs[:2] {
			high.request.Claim = append(high.request.Claim, api.Placed{Bundle: int64(len(high.request.Claim)), Node: n.node.ID, Devices: []string{g.UUID}})
		}
		high.request.Leaving = []string{own.Group}
		s := clusterOf([]*nodeBuilder{&n}).heldBy(own).pending(high, low)
		s.Queues = &Queues{List: []*api.Queue{
			{Name: "keeper", Tenant: true, Guaranteed: api.Amounts{{Of: "gpu", N: 1000}}, Lend: api.Amounts{{Of: "gpu", N: 1000 * lends}}},
			{Name: "b", Tenant: true},
		}}
		r := plan(s)
		if got := decisionFor(r.All(), "low").Bundles != nil; got != starts || len(r.Unclaims) > 0 {
			t.Errorf("lends %d: low starts %v, unclaims %+v", lends, got, r.Unclaims)
		}
		if why := r.Why("low"); !starts && (len(why) == 0 || why[0].Code != api.ReasonQuota || !strings.Contains(why[0].Text, "keeper")) {
			t.Errorf("%+v", why)
		}
	}
}
