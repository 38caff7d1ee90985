package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What a quota refuses is told when enough of what counts against it is expected to have
// ended, with those before it in its queue; nothing is kept for it.
func TestForecastOfAQuota(t *testing.T) {
	in := func() *Snapshot {
		n := aNode("n1").gpus(4, 72).taken(0, 1)
		x := holder("x", n.node, 0, 1)
		x.Spec = new(gang("x", 2, gpus(1)).tenant("owner").request.Spec)
		x.Started, x.Ends = epoch.Add(-time.Hour), epoch.Add(time.Hour)
		s := cluster(n).heldBy(x).pending(
			gang("first", 2, gpus(1)).tenant("owner").runs(30*time.Minute),
			gang("second", 1, gpus(1)).tenant("owner").runs(time.Hour),
			gang("third", 2, gpus(1)).tenant("owner").runs(time.Hour),
			gang("never", 3, gpus(1)).tenant("owner").runs(time.Hour),
		)
		s.Queues = tenants("owner", 2, "guests", 2)
		s.Policy.Order = OrderFIFO
		return s
	}
	r := plan(in())
	for _, tc := range []struct {
		group string
		start time.Duration
		after string
	}{
		{"first", time.Hour, "x"},
		{"second", 90 * time.Minute, "first x"},
		{"third", 150 * time.Minute, "second first x"},
	} {
		f, ok := r.Forecast(tc.group)
		if !ok || !f.Start.Equal(epoch.Add(tc.start)) || strings.Join(f.After, " ") != tc.after || len(f.Nodes) > 0 {
			t.Errorf("%s: %+v, %v", tc.group, f, ok)
		}
	}
	f, _ := r.Forecast("first")
	want := []string{
		"x ends by 2026-01-02 04:04:05 UTC: its expected end",
		"first runs for 30m: its expected end",
		"its quota does not let it start before, so no nodes are kept for it until then",
	}
	if !slices.Equal(f.Assumptions, want) {
		t.Errorf("assumptions\n%s\nwant\n%s", strings.Join(f.Assumptions, "\n"), strings.Join(want, "\n"))
	}
	if f, ok := r.Forecast("never"); ok {
		t.Errorf("more than its quota: %+v", f)
	}

	// Somebody else's day-long work takes the rest at once; the forecast is then for after it.
	s := in().pending(gang("guest", 2, gpus(1)).tenant("guests").runs(24 * time.Hour))
	r = plan(s)
	if d := decisionFor(r.All(), "guest"); d.Bundles == nil {
		t.Error("something is kept for what its quota refuses")
	}
	if f, ok := r.Forecast("first"); !ok || !f.Start.Equal(epoch.Add(time.Hour)) {
		t.Errorf("%+v, %v", f, ok)
	}
	before := decisionFor(plan(s).All(), "third")
	if _, ok := r.Forecast("third"); !ok {
		t.Error("nothing is known of third")
	}
	if why := r.Why("third"); len(why) == 0 || why[0].Missing != "2 GPUs" {
		t.Errorf("a forecast changed the books: %+v, %+v", why, before)
	}
}
