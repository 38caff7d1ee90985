package control

import (
	"errors"
	"strings"
	"testing"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// waiting is a head with two devices, both held, a tenant and its queue, a level, and a
// group that waits; its id is returned.
func waiting(t *testing.T) (*Head, string) {
	t.Helper()
	h, _ := headWith(t, 2)
	levels := []api.Level{{Name: "rack", Label: "rack"}}
	for what, err := range map[string]error{
		"levels": h.PutTopology(t.Context(), api.TopologyRequest{Levels: &levels}),
		"queues": h.PutQueues(t.Context(), api.QueuesRequest{Queues: []api.Queue{
			{Name: "team", Tenant: true, MaxPriority: new(int64(100))}, {Name: "night", Parent: "team"}, {Name: "kept", Tenant: true, Pools: []string{"far"}},
		}}),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	var id string
	for _, devices := range []int64{2, 1} {
		spec := groupOf(devices)
		spec.Tenant = "team"
		made, err := h.CreateGroup(t.Context(), spec, headapi.Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		id = made.ID
	}
	return h, id
}

// A change to something that there is not is refused with its name, as a submission would
// be; it is never looked at as if it were a reason to wait.
func TestWhatIfOfWhatIsNot(t *testing.T) {
	h, id := waiting(t)
	for change, want := range map[string]string{
		"level=row": `"row"`, "level=rack": "no node is in one", "queue=day": `"day"`, "tenant=nobody": `"nobody"`, "tenant=kept": "far", "reservation=feast": `"feast"`, "gpus=3": "3", "ranks=3": "3",
		"priority=500": "above 100", "strategy=heap": "HEAP", "pool=\x1b[31m": "/pool", "queue=" + strings.Repeat("q", 200): "200 bytes",
	} {
		w, err := h.Why(t.Context(), "pg/"+id, change)
		p, ok := errors.AsType[*api.Problem](err)
		if !ok || len(p.Errors) == 0 && p.Help == "" {
			t.Errorf("%q: %v, %+v", change, err, w.Alternatives)
			continue
		}
		text := p.Detail
		for _, e := range p.Errors {
			text += " " + e.Pointer + " " + e.Detail
		}
		if !strings.Contains(text, want) {
			t.Errorf("%q: %s, want %q", change, text, want)
		}
	}
	for _, change := range []string{"queue=night", "gpus=2", "ranks=2", "priority=100", "time=10m", "preemptible=true", "tenant=", "any"} {
		if w, err := h.Why(t.Context(), "pg/"+id, change); err != nil || len(w.Alternatives) == 0 && change != "any" {
			t.Errorf("%s: %v, %+v", change, err, w.Alternatives)
		}
	}
}

// Any change is looked into or refused, and changes nothing.
func FuzzWhatIf(f *testing.F) {
	for _, change := range []string{
		"ranks=2", "bundles=0", "ranks=-1", "ranks=10001", "ranks=99999999999999999999", "gpus=0", "gpus=4097", "priority=1000001", "pool=far", "queue=night", "queue=",
		"tenant=team", "level=rack", "level=row", "strategy=spread", "strategy=", "reservation=x", "preemptible=1", "whole-nodes=maybe", "time=1ns", "time=106751d", "time=-1h",
		"=", "ranks", "", "any", "any=1", "time=2h\x00gpus=2", "level=rack\x00ranks=2\x00strategy=STRICT_SPREAD",
	} {
		f.Add(change)
	}
	var h *Head
	var id string
	f.Fuzz(func(t *testing.T, text string) {
		if h == nil {
			h, id = waiting(t)
		}
		before := h.Store.View().Index()
		changes := strings.Split(text, "\x00")
		w, err := h.Why(t.Context(), "pg/"+id, changes[:min(16, len(changes))]...)
		if p, ok := errors.AsType[*api.Problem](err); err != nil && (!ok || p.Detail == "" || len(p.Errors) == 0 && p.Help == "") {
			t.Errorf("%q: %#v", text, err)
		}
		for _, a := range w.Alternatives {
			if a.Change == "" || a.Now && len(a.After) > 0 {
				t.Errorf("%q: %+v", text, a)
			}
		}
		if is := h.Store.View().Index(); is != before {
			t.Errorf("%q changed the state", text)
		}
	})
}
