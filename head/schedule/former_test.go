package schedule

import (
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What a gang held before it lost a part of it is planned for it for a while (P1): work
// that may be ended for it uses it meanwhile, other work does not, and when its time is
// over anybody may.
func TestFormerPlace(t *testing.T) {
	ns := nodesOf("n", 2, 2)
	ns[1].node.Ready, ns[1].node.Why = false, "lost"
	lost := gang("lost", 2, gpus(2))
	lost.request.Former = []api.Placed{{Node: ns[0].node.ID, Devices: []string{ns[0].node.GPUs[0].UUID, ns[0].node.GPUs[1].UUID}}}
	lost.request.FormerUntil = epoch.Add(10 * time.Minute)
	other := gang("other", 1, gpus(1))
	spare := gang("spare", 1, gpus(1))
	spare.request.Spec.Preemptible = true
	short := gang("short", 1, gpus(1))
	short.request.Expect = time.Minute

	r := plan(clusterOf(ns).pending(lost, spare))
	if d := decisionFor(r.All(), "spare"); len(d.Bundles) != 1 {
		t.Errorf("work that may be ended does not use what is kept: %+v", d)
	}
	r = plan(clusterOf(ns).pending(lost, other, short))
	for _, id := range []string{"lost", "other", "short"} {
		if d := decisionFor(r.All(), id); d.Bundles != nil {
			t.Errorf("%s was placed", id)
		}
	}
	if !r.Again.Equal(lost.request.FormerUntil) {
		t.Errorf("again at %s", r.Again)
	}
	if rs := r.Why("other"); len(rs) == 0 {
		t.Error("no reason")
	} else {
		t.Logf("why: %s", rs[0].Text)
	}

	// The node is back: the gang is whole again at once.
	ns[1].node.Ready = true
	r = plan(clusterOf(ns).pending(lost, spare))
	if d := decisionFor(r.All(), "lost"); len(d.Bundles) != 2 {
		t.Errorf("%+v", r.All())
	}

	// It is not back in time.
	ns[1].node.Ready = false
	r = NewPlanner().Plan(clusterOf(ns).pending(lost, other, short), lost.request.FormerUntil)
	for _, id := range []string{"other", "short"} {
		if d := decisionFor(r.All(), id); len(d.Bundles) != 1 {
			t.Errorf("%s waits though the time is over", id)
		}
	}
}
