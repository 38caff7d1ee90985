package state

import (
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// owned is a running job that the process of pid 7 owns.
func owned(t *testing.T) *machine {
	m := newMachine(t)
	m.node("n1", 0)
	spec := api.JobSpec{
		Name: "j", Kind: api.KindTraining, Run: "j", Command: []string{"x"}, Ranks: 1, Tenant: "default", Queue: "default",
		Owner: &api.Owner{BootID: "boot-1", PID: 7, StartTime: 1},
	}
	m.ok(KindSubmitJob, SubmitJob{ID: "j", ULID: "01", Spec: spec, Group: "pg-j", GroupSpec: &api.GroupSpec{Bundles: make([]api.Bundle, 1), Strategy: api.Pack, Tenant: "default", Queue: "default"}})
	m.place("pg-j", "n1", 1)
	m.start("j", "n1", 1, -1)
	return m
}

func TestADisownedJobSurvivesItsOwner(t *testing.T) {
	m := owned(t)
	m.ok(KindDisownJob, DisownJob{Job: "j"})
	if j := m.s.View().Job("j"); j.Spec.Owner != nil {
		t.Fatalf("after disown the owner is %+v", j.Spec.Owner)
	}
	alloc := m.s.View().AllocsOf("j")[0]
	m.facts("n1", wire.AllocEvent{Alloc: alloc.ID, Seq: 1, Kind: wire.EventOwnerGone})
	if m.s.View().Job("j").OwnerGone {
		t.Error("the death of a process that no longer owns the job was counted")
	}
	m.ok(KindDisownJob, DisownJob{Job: "j"}) // again: nothing to do
}

func TestDisownComesTooLate(t *testing.T) {
	m := owned(t)
	alloc := m.s.View().AllocsOf("j")[0]
	m.facts("n1", wire.AllocEvent{Alloc: alloc.ID, Seq: 1, Kind: wire.EventOwnerGone})
	m.refused("conflict", KindDisownJob, DisownJob{Job: "j"})
	m.refused("not-found", KindDisownJob, DisownJob{Job: "nobody"})

	m = owned(t)
	m.ok(KindStopJob, StopJob{Job: "j", GraceNS: 1})
	m.refused("conflict", KindDisownJob, DisownJob{Job: "j"})
}
