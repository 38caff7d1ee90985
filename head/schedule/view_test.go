package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A line that has been looked at in other turns, and before other starts were planned, says
// of a turn what one says that is made for it.
func TestPropLinesSeeWhatIsPlannedBeforeATurn(t *testing.T) {
	later := 0
	checkUntil(t, func() bool { return later > 0 }, func(t *rapid.T) {
		w := &world{s: drawTimely(t), now: epoch}
		planner := NewPlanner()
		planner.PlanAge = time.Hour
		for range 4 {
			got := planner.Plan(w.s, w.now)
			ds := got.All()
			if p := got.cycle.times; p != nil {
				for range 4 {
					turn := rapid.IntRange(0, len(ds)).Draw(t, "turn")
					p.see(turn)
					for _, l := range p.lines {
						l.catchUp(p)
						fresh := &line{d: l.d, c: l.c, asker: l.asker, stale: make([]bool, len(p.nodes)), sums: slices.Clone(p.view.sums)}
						for ni := range p.nodes {
							fresh.main.byFrom = p.spans(fresh, ni, fresh.main.byFrom)
						}
						fresh.main.sort()
						at, dur := p.now+int64(minutes(t, "at")), int64(minutes(t, "for"))
						got, want := make([]int32, len(p.nodes)), make([]int32, len(p.nodes))
						l.covering(at, dur, got, nil)
						fresh.covering(at, dur, want, nil)
						if !slices.Equal(got, want) {
							t.Fatalf("turn %d at %s for %s: room %v, made anew %v", turn, moment(at), time.Duration(dur), got, want)
						}
					}
					for _, e := range p.list {
						if e.turn >= turn {
							later++
						}
					}
				}
			}
			w.start(ds)
			if at, ok := w.next(); ok && rapid.Bool().Draw(t, "something ends") {
				w.end(at)
			}
			w.now = w.now.Add(time.Minute)
			for _, h := range w.s.Holders {
				if !h.Ends.After(w.now) {
					w.end(w.now)
					break
				}
			}
		}
	})
	if later == 0 {
		t.Error("nothing was planned after a turn; the property proved nothing")
	}
}
