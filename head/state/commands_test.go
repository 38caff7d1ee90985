package state

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// step is one command of a table: Code "" means that it is applied.
type step struct {
	kind Kind
	body any
	code string
}

// TestEveryKind walks the table of handlers: each kind is applied once and refused
// once, or has no precondition that could refuse it.
func TestEveryKind(t *testing.T) {
	free := map[Kind]string{
		KindFacts:           "facts are noted or meaningless, never refused",
		KindRaiseGeneration: "an older one changes nothing",
		KindRaiseLevel:      "a lower one changes nothing",
	}
	hash := strings.Repeat("a", 64)
	one := api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1000}}}}
	at := []api.Placed{{Node: "n1"}}
	ranks := []RankStart{{Node: "n1"}}
	zero := int64(0)
	proposal := func(generation, number uint64) agree.Proposal {
		return agree.Proposal{Proposal: wire.Proposal{Number: number, Target: 9, State: wire.ProposalOpen, Stop: true}, Generation: generation}
	}
	two := ResizeGroup{Group: "pg-a", From: []int64{0, -1}, Placement: []api.Placed{{Node: "n1"}, {Bundle: 1, Node: "n1"}}}
	m := newMachine(t)
	applied, refused := map[Kind]bool{KindCreateCluster: true}, map[Kind]bool{}
	for _, s := range []step{
		{KindCreateCluster, CreateCluster{Cluster: "d", Life: "0badcafe"}, "exists"},
		{KindRegisterNode, RegisterNode{}, "invalid"},
		{KindRegisterNode, RegisterNode{ID: "n1", Info: wire.NodeInfo{Session: "s", Level: 0}}, "invalid"},
		{KindRegisterNode, RegisterNode{ID: "n1", Seq: 5, Info: wire.NodeInfo{Session: "s", Level: 1, Started: 9, BootID: "b", CPU: 4000}}, ""},
		{KindRegisterNode, RegisterNode{ID: "n1", Seq: 5, Info: wire.NodeInfo{Session: "s", Level: 1, Started: 9, BootID: "b", CPU: 4000}}, "stale"},
		{KindRegisterNode, RegisterNode{ID: "n1", Seq: 9, Info: wire.NodeInfo{Session: "r", Level: 1, Started: 8, BootID: "a", CPU: 4000}}, "stale"},
		{KindSetNodeState, SetNodeState{ID: "n9", State: api.NodeLost}, "not-found"},
		{KindSetNodeState, SetNodeState{ID: "n1", State: api.NodeLost, Session: "older"}, "stale"},
		{KindSetNodeState, SetNodeState{ID: "n1", State: api.NodeSuspect, Session: "s"}, ""},
		{KindSetNodeState, SetNodeState{ID: "n1", State: api.NodeReady}, ""},
		{KindSubmitJob, SubmitJob{ID: "a", Spec: api.JobSpec{Name: "a", Ranks: 1}, Group: "none"}, "not-found"},
		{KindSubmitJob, SubmitJob{ID: "a", Spec: api.JobSpec{Name: "a", Ranks: 1}, Group: "pg-a", GroupSpec: &one}, ""},
		{KindSubmitJob, SubmitJob{ID: "a", Spec: api.JobSpec{Name: "z", Ranks: 1}, Group: "pg-z", GroupSpec: &one}, "exists"},
		{KindSubmitJob, SubmitJob{ID: "b", Spec: api.JobSpec{Name: "a", Ranks: 1}, Group: "pg-b", GroupSpec: &one}, "conflict"},
		{KindSubmitJob, SubmitJob{ID: "b", Spec: api.JobSpec{Name: "b", Ranks: 1}, Group: "pg-a", GroupSpec: &one}, "exists"},
		{KindCreateGroup, CreateGroup{ID: "g", Spec: one}, ""},
		{KindCreateGroup, CreateGroup{ID: "g", Spec: one}, "exists"},
		{KindSubmitJob, SubmitJob{ID: "b", Spec: api.JobSpec{Name: "b", Ranks: 2}, Group: "g"}, "invalid"},
		{KindPlaceGroup, PlaceGroup{Group: "none", Placement: at}, "not-found"},
		{KindPlaceGroup, PlaceGroup{Group: "g", Placement: []api.Placed{{Node: "n9"}}}, "conflict"},
		{KindPlaceGroup, PlaceGroup{Group: "g", Placement: at}, ""},
		{KindPlaceGroup, PlaceGroup{Group: "g", Placement: at}, "conflict"},
		{KindReleaseGroup, ReleaseGroup{Group: "pg-a"}, "conflict"},
		{KindReleaseGroup, ReleaseGroup{Group: "none"}, "not-found"},
		{KindReleaseGroup, ReleaseGroup{Group: "g", Why: "a node was lost"}, ""},
		{KindRemoveGroup, RemoveGroup{Group: "none"}, "not-found"},
		{KindRemoveGroup, RemoveGroup{Group: "pg-a"}, "conflict"},
		{KindRemoveGroup, RemoveGroup{Group: "g"}, ""},
		{KindSupervise, Supervise{Job: "none"}, "not-found"},
		{KindSupervise, Supervise{Job: "a", Attempt: 3}, "stale"},
		{KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: ranks}}, "conflict"},
		{KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{}}, "invalid"},
		{KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: []RankStart{{Node: "n2"}}}}, "stale"},
		{KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: ranks, Restore: &Restore{Step: 5, Dir: "/x"}}}, "stale"},
		{KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: ranks}}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: 0, Start: &AttemptStart{Ranks: ranks}}, "conflict"},
		{KindFirstStep, FirstStep{Job: "a", Generation: 1}, "stale"},
		{KindFirstStep, FirstStep{Job: "a", Generation: 1<<48 + 1}, ""},
		{KindRunFast, RunFast{Run: "none"}, "not-found"},
		{KindRunFast, RunFast{Run: "a", Generation: 1}, "stale"},
		{KindRunFast, RunFast{Run: "a", Generation: 1<<48 + 1}, ""},
		{KindAbortAttempt, AbortAttempt{Job: "a", Generation: 1}, "stale"},
		{KindAbortAttempt, AbortAttempt{Job: "a", Generation: 1<<48 + 1, Why: "rank 0 is gone"}, ""},
		{KindStall, StallFound{Job: "a", Generation: 1<<48 + 1}, "stale"}, // nobody has said that it stands
		{KindFacts, Facts{Node: "n1", Events: []wire.AllocEvent{{Alloc: "a.3", Seq: 1, Kind: wire.EventStalled, Generation: 1<<48 + 1}}}, ""},
		{KindStall, StallFound{Job: "a", Generation: 1<<48 + 1, Text: "rank 0 stands"}, ""},
		{KindRestoreVerified, FirstStep{Job: "a", Generation: 1<<48 + 1}, "stale"},
		{KindCommitCheckpoint, CommitCheckpoint{Run: "none"}, "not-found"},
		{KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 5, Generation: 7}, "stale"},
		{KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 5, Generation: 1<<48 + 1, World: 1, Dir: "/5", Digest: "d"}, ""},
		{KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 7, Generation: 1<<48 + 1, World: 1, Dir: "/7", Digest: "d"}, ""},
		{KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 6, Generation: 1<<48 + 1, World: 1, Dir: "/6", Digest: "d"}, "exists"},
		{KindDropStep, DropStep{Run: "none"}, "not-found"},
		{KindDropStep, DropStep{Run: "a", Step: 8, Generation: 7}, "stale"},
		{KindDropStep, DropStep{Run: "a", Step: 7, Generation: 1<<48 + 1}, "exists"},
		{KindDropStep, DropStep{Run: "a", Step: 8, Generation: 1<<48 + 1, Reason: "rank 0 gave it up"}, ""},
		{KindTombstone, Tombstone{ID: "none"}, "not-found"},
		{KindTombstone, Tombstone{ID: CheckpointID("a", 1<<48+1, 7)}, "conflict"},
		{KindCheckpointDone, CheckpointDone{ID: CheckpointID("a", 1<<48+1, 5), Deleted: true}, "conflict"},
		{KindPinCheckpoint, PinCheckpoint{ID: "none", Pinned: true}, "not-found"},
		{KindPinCheckpoint, PinCheckpoint{ID: CheckpointID("a", 1<<48+1, 5), Pinned: true}, ""},
		{KindTombstone, Tombstone{ID: CheckpointID("a", 1<<48+1, 5), Asked: true}, "conflict"},
		{KindPinCheckpoint, PinCheckpoint{ID: CheckpointID("a", 1<<48+1, 5)}, ""},
		{KindTombstone, Tombstone{ID: CheckpointID("a", 1<<48+1, 5)}, ""},
		{KindPinCheckpoint, PinCheckpoint{ID: CheckpointID("a", 1<<48+1, 5), Pinned: true}, "conflict"},
		{KindTombstone, Tombstone{ID: CheckpointID("a", 1<<48+1, 7), Asked: true}, "conflict"}, // a job lives
		{KindCheckpointDone, CheckpointDone{ID: CheckpointID("a", 1<<48+1, 5), State: CheckpointCommitted}, "stale"},
		{KindCheckpointDone, CheckpointDone{ID: CheckpointID("a", 1<<48+1, 5), Deleted: true, State: CheckpointDeleting}, ""},
		{KindRollBack, RollBack{Run: "a", Step: 8}, "not-found"},
		{KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{Cause: api.CauseUser, Ledger: supervise.Ledger{User: 1, Failed: 1}}}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{}}, "stale"},
		{KindSupervise, Supervise{Job: "a", Attempt: 0, Start: &AttemptStart{Ranks: ranks}}, "stale"}, // step 7 is to be restored
		{KindSupervise, Supervise{Job: "a", Attempt: 0, Start: &AttemptStart{Ranks: ranks, Restore: &Restore{Step: 7, Dir: "/7"}}}, ""},
		{KindRestoreVerified, FirstStep{Job: "a", Generation: 1<<48 + 2}, ""},
		{KindTombstone, Tombstone{ID: CheckpointID("a", 1<<48+1, 7)}, "conflict"},
		{KindRollBack, RollBack{Run: "a", Step: 7, Reason: "damaged"}, ""},
		{KindInjectFault, InjectFault{Job: "none"}, "not-found"},
		{KindDisownJob, DisownJob{Job: "none"}, "not-found"},
		{KindDisownJob, DisownJob{Job: "a"}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: 1, State: api.Running}, ""},
		{KindInjectFault, InjectFault{Job: "a", Fault: "kill-rank"}, ""},
		{KindPropose, Propose{Job: "none"}, "not-found"},
		{KindPropose, Propose{Job: "a", Proposal: proposal(1, 1)}, "stale"}, // another generation
		{KindPropose, Propose{Job: "a", Proposal: agree.Proposal{Generation: 1<<48 + 2}}, "invalid"},
		{KindPropose, Propose{Job: "a", Proposal: proposal(1<<48+2, 1)}, ""},
		{KindPropose, Propose{Job: "a", Proposal: proposal(1<<48+2, 1)}, "stale"},
		{KindPropose, Propose{Job: "a", Proposal: proposal(1<<48+2, 2)}, "conflict"},
		{KindDecide, Decide{Job: "none"}, "not-found"},
		{KindDecide, Decide{Job: "a", Number: 2}, "stale"},
		{KindDecide, Decide{Job: "a", Number: 1, Agreed: true}, "conflict"}, // to end, which nobody asks for
		{KindDecide, Decide{Job: "a", Number: 1, Code: agree.WhyPassed}, ""},
		{KindDecide, Decide{Job: "a", Number: 1, Agreed: true}, "stale"},
		{KindDrainNode, DrainNode{ID: "n9"}, "not-found"},
		{KindDrainNode, DrainNode{ID: "n1", Cordon: &NodeDrain{Drain: true}}, ""},
		{KindDrainNode, DrainNode{ID: "n1", Cordon: &NodeDrain{}}, "conflict"},
		{KindCreateGroup, CreateGroup{ID: "g2", Spec: one, Placement: at}, ""},
		{KindPlaceGroup, PlaceGroup{Group: "g2", Placement: at}, "conflict"}, // the node takes nothing new
		{KindRemoveGroup, RemoveGroup{Group: "g2"}, ""},
		{KindDrainNode, DrainNode{ID: "n1"}, ""},
		{KindSetSpares, SetSpares{Group: "none"}, "not-found"},
		{KindSetSpares, SetSpares{Group: "pg-a", Placement: at}, "invalid"}, // a rank's node
		{KindSetSpares, SetSpares{Group: "pg-a"}, ""},
		{KindNodeNotice, NodeNotice{ID: "n9"}, "not-found"},
		{KindNodeNotice, NodeNotice{ID: "n1", Boot: "b", Number: 1, Deadline: 1 << 60}, ""},
		{KindNodeNotice, NodeNotice{ID: "n1", Boot: "b", Number: 2, Withdrawn: true}, ""},
		{KindDrainJob, DrainJob{Job: "none"}, "not-found"},
		{KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize}}, "invalid"},
		{KindOrderEnd, OrderEnd{Job: "a", Generation: 1<<48 + 2}, "stale"},
		{KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 2}}, ""},
		{KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainMove}}, ""},
		{KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 2}}, "conflict"}, // it moves first
		{KindCancelDrain, CancelDrain{Job: "none"}, "not-found"},
		{KindCancelDrain, CancelDrain{Job: "a"}, ""},
		{KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 2}}, ""},
		{KindOrderEnd, OrderEnd{Job: "a", Generation: 1<<48 + 1}, "stale"},
		{KindOrderEnd, OrderEnd{Job: "a", Generation: 1<<48 + 2, Why: "the deadline has come"}, ""},
		{KindCancelDrain, CancelDrain{Job: "a"}, "conflict"},
		{KindResizeGroup, two, "conflict"}, // it runs
		{KindSupervise, Supervise{Job: "a", Attempt: 1, End: &AttemptEnd{}}, ""},
		{KindResizeGroup, ResizeGroup{Group: "none"}, "not-found"},
		{KindResizeGroup, ResizeGroup{Group: "pg-a", From: []int64{0, -1, -1}, Placement: slices.Repeat(at, 3)}, "invalid"}, // not the size that was asked for
		{KindResizeGroup, two, ""},
		{KindStopJob, StopJob{Job: "none"}, "not-found"},
		{KindStopJob, StopJob{Job: "a", Reason: "enough"}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: 1, State: api.Stopped, ExitCode: &zero}, ""},
		{KindSupervise, Supervise{Job: "a", Attempt: 1, State: api.Running}, "conflict"},
		{KindInjectFault, InjectFault{Job: "a", Fault: "kill-rank"}, "conflict"},
		{KindDropStep, DropStep{Run: "a", Step: 9, Generation: 1<<48 + 2}, "stale"},
		{KindStopJob, StopJob{Job: "a"}, ""}, // it has ended: nothing to do
		{KindFacts, Facts{Node: "n1", Events: []wire.AllocEvent{{Alloc: "a.3", Seq: 2, Kind: wire.EventGone}, {Alloc: "none", Seq: 1, Kind: wire.EventGone}}}, ""},
		{KindSubmitJob, SubmitJob{ID: "h", Spec: api.JobSpec{Name: "h", Ranks: 1, Hosts: &api.HostsSpec{Min: 1, Max: 2}}, Group: "pg-h", GroupSpec: &api.GroupSpec{}}, ""},
		{KindReshape, Reshape{Job: "a", Attempt: 1}, "conflict"},
		{KindReshape, Reshape{Job: "h", Attempt: -1, Bundles: one.Bundles, Placement: at}, ""},
		{KindReshape, Reshape{Job: "h", Attempt: -1}, ""},
		{KindSupervise, Supervise{Job: "h", Attempt: -1, State: api.Failed, ExitCode: &zero}, ""},
		{KindAdoptCheckpoints, AdoptCheckpoints{Run: "z", Steps: []Adopted{{Step: 5, Generation: 1<<48 + 100}}}, "stale"},
		{KindRaiseGeneration, RaiseGeneration{Above: 1<<48 + 100}, ""},
		{KindAdoptCheckpoints, AdoptCheckpoints{Run: "z", Steps: []Adopted{{Step: 5, Generation: 1<<48 + 100}}}, ""},
		{KindAdoptCheckpoints, AdoptCheckpoints{Run: "z", Steps: []Adopted{{Step: 5, Generation: 1<<48 + 100}}}, "exists"},
		{KindAdoptCheckpoints, AdoptCheckpoints{Run: "z"}, "invalid"},
		{KindTombstone, Tombstone{ID: CheckpointID("z", 1<<48+100, 5)}, "conflict"}, // the newest stays
		{KindTombstone, Tombstone{ID: CheckpointID("z", 1<<48+100, 5), Asked: true}, ""},
		{KindCreateGroup, CreateGroup{ID: "g5", Spec: one, Placement: at}, ""},
		{KindCreateGroup, CreateGroup{ID: "g6", Spec: one}, ""},
		{KindPreempt, Preempt{Group: "none"}, "not-found"},
		{KindPreempt, Preempt{Group: "g6", Claim: at}, "invalid"}, // nobody is to leave
		{KindPreempt, Preempt{Group: "g6", Claim: at, Victims: []Victim{{Group: "g5"}}}, ""},
		{KindDropClaim, DropClaim{Group: "none"}, "not-found"},
		{KindDropClaim, DropClaim{Group: "g6"}, ""},
		{KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "q", Parent: "none"}}}, "invalid"},
		{KindPutQueues, PutQueues{Remove: []string{"none"}}, "not-found"},
		{KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "t", Tenant: true}, {Name: "q", Parent: "t"}}}, ""},
		{KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "q", Parent: "t"}}, If: 1}, "conflict"},
		{KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "r", Count: 1}}, "invalid"},
		{KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "r", Count: 1, Tenant: "t", End: time.Unix(9, 0)}}, ""},
		{KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "r"}, Remove: true}, ""},
		{KindPutCapacities, PutCapacities{Capacities: []api.Capacity{{Name: "c", Level: "none"}}}, "invalid"},
		{KindPutCapacities, PutCapacities{Capacities: []api.Capacity{{Name: "c", Total: 9}}}, ""},
		{KindPutSettings, PutSettings{Levels: &[]api.Level{{Name: "rack"}}}, "invalid"},
		{KindPutSettings, PutSettings{Levels: &[]api.Level{{Name: "rack", Label: "rack"}}}, ""},
		{KindPutLinks, PutLinks{Links: []api.Link{{A: "n1", B: "n1"}}}, "invalid"},
		{KindPutLinks, PutLinks{Links: []api.Link{{A: "n1", B: "n2", Checked: time.Unix(1, 0)}}}, ""},
		{KindSubmitJob, SubmitJob{ID: "w", Spec: api.JobSpec{Name: "w", Ranks: 1, Hold: true}, Group: "pg-w", GroupSpec: &one, Placement: at}, ""},
		{KindPlaceGroup, PlaceGroup{Group: "pg-w", Placement: at}, "conflict"}, // it is held
		{KindEditJob, EditJob{Job: "w"}, "invalid"},
		{KindEditJob, EditJob{Job: "w", Priority: &zero}, ""},
		{KindParkJob, ParkJob{Job: "none"}, "not-found"},
		{KindParkJob, ParkJob{Job: "w", State: api.Queued}, ""},
		{KindParkJob, ParkJob{Job: "w", State: api.Queued}, "conflict"}, // nothing keeps it
		{KindSupervise, Supervise{Job: "w", Attempt: -1, State: api.Failed, ExitCode: &zero}, ""},
		{KindCreateGroup, CreateGroup{ID: "roles", Spec: api.GroupSpec{
			Bundles: []api.Bundle{{}, {}}, Roles: []api.Role{{Name: "r", Bundles: 2, Min: 1}},
		}}, ""},
		{KindCompleteGroup, CompleteGroup{Group: "roles", Placement: at}, "conflict"}, // it waits
		{KindPlaceGroup, PlaceGroup{Group: "roles", Placement: []api.Placed{{Node: at[0].Node}}}, ""},
		{KindCompleteGroup, CompleteGroup{Group: "roles", Placement: []api.Placed{{Bundle: 1, Node: at[0].Node}}}, ""},
		{KindRemoveGroup, RemoveGroup{Group: "roles"}, ""},
		{KindAddToken, AddToken{Token: Token{Hash: "short"}}, "invalid"},
		{KindAddToken, AddToken{Token: Token{Hash: hash, Name: "x", Role: "viewer"}}, ""},
		{KindRevokeToken, RevokeToken{Hash: "none"}, "not-found"},
		{KindRevokeToken, RevokeToken{Hash: hash}, ""},
		{KindRaiseLevel, RaiseLevel{Level: 2}, ""},
	} {
		before := m.render()
		r := m.do(s.kind, s.body)
		ref, bad := r.(*Refused)
		switch {
		case s.code == "" && bad:
			t.Fatalf("%T %+v: %v", s.body, s.body, ref)
		case s.code != "" && (!bad || ref.Code != s.code):
			t.Fatalf("%T %+v: %v, want refusal %s", s.body, s.body, r, s.code)
		case s.code != "" && m.render() != before:
			t.Fatalf("%T was refused and changed something", s.body)
		}
		applied[s.kind] = applied[s.kind] || s.code == ""
		refused[s.kind] = refused[s.kind] || s.code != ""
	}
	for kind := range handlers {
		if !applied[kind] {
			t.Errorf("kind %d was never applied", kind)
		}
		if !refused[kind] && free[kind] == "" {
			t.Errorf("kind %d was never refused", kind)
		}
	}
	if left := m.s.View().Holds(); len(left) != 0 {
		t.Errorf("%d holds are left: %+v", len(left), left[0])
	}
}

// render is every record of the state: a snapshot without its head, which holds index
// and term, and its trailer.
func (m *machine) render() string {
	m.t.Helper()
	b := m.snapshot()
	return string(b[24 : len(b)-13])
}

// TestReleaseWithPlacement: after a loss the gang moves in one entry; what stays keeps
// its holds, what moves is charged at both places until it is proven gone (P1, P2).
func TestReleaseWithPlacement(t *testing.T) {
	m := newMachine(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		m.node(n, 0)
	}
	m.submit("a", 2)
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: []api.Placed{{Node: "n1"}, {Bundle: 1, Node: "n2"}}})
	rs := []RankStart{{Node: "n1"}, {Rank: 1, Bundle: 1, Node: "n2"}}
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: rs}})
	kept := m.s.View().Group("pg-a").Placed[0].Hold
	m.ok(KindSetNodeState, SetNodeState{ID: "n2", State: api.NodeLost})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{Cause: api.CauseInfra}})
	move := func(to string) ReleaseGroup {
		return ReleaseGroup{Group: "pg-a", Why: "n2 lost", Placement: []api.Placed{{Node: "n1"}, {Bundle: 1, Node: to}}}
	}
	m.ok(KindReleaseGroup, move("n3"))
	v := m.s.View()
	g := v.Group("pg-a")
	if g.State != api.GroupPlaced || g.Placed[0].Hold != kept || g.Placed[1].Node != "n3" {
		t.Fatalf("%+v", g)
	}
	if v.UseOf("n2").CPU != 1000 || v.UseOf("n3").CPU != 1000 || v.UseOf("n1").CPU != 1000 {
		t.Fatalf("charged %d %d %d", v.UseOf("n1").CPU, v.UseOf("n2").CPU, v.UseOf("n3").CPU)
	}
	// What does not fit any more releases everything, and the job keeps its turn.
	m.ok(KindSetNodeState, SetNodeState{ID: "n3", State: api.NodeLost})
	m.ok(KindReleaseGroup, move("nowhere"))
	v = m.s.View()
	if g := v.Group("pg-a"); g.State != api.GroupPending || len(g.Placed) != 0 || len(g.Keep) != 1 || g.Keep[0] != "n1" {
		t.Fatalf("%+v", g)
	}
	if j := v.Job("a"); j.State != api.Queued || j.Seq != v.Group("pg-a").Seq {
		t.Fatalf("%s, seniority %d and %d", j.State, j.Seq, v.Group("pg-a").Seq)
	}
	if v.UseOf("n1").CPU != 1000 { // rank 0 is not proven gone
		t.Fatal("freed without proof")
	}
}

// TestStaleFacts: a fact of another node, of an older generation, told twice or of an
// allocation that is gone changes nothing but its own acknowledgement (P3, I12).
func TestStaleFacts(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.node("n2", 0)
	m.submit("a", 1)
	m.place("pg-a", "n1", 1)
	gen := m.start("a", "n1", 1, -1)
	id := m.s.View().AllocsOf("a")[0].ID
	ev := func(seq, gen uint64, kind wire.EventKind) wire.AllocEvent {
		return wire.AllocEvent{Alloc: id, Seq: seq, Generation: gen, Kind: kind, Exit: &wire.RankExit{StepsDone: -1}}
	}
	m.facts("n2", ev(1, gen, wire.EventStarted))
	if a := m.s.View().Alloc(id); a.Started || a.Acked != 0 {
		t.Fatal("a stranger's fact was taken")
	}
	m.facts("n1", ev(1, gen, wire.EventStarted), ev(2, gen-1, wire.EventEnded), ev(3, gen+1, wire.EventRankExited))
	if a := m.s.View().Alloc(id); !a.Started || a.Ended || a.Acked != 3 || len(m.s.View().Job("a").Last().Exits) != 0 {
		t.Fatalf("%+v", a)
	}
	m.facts("n1", ev(4, gen, wire.EventRankExited), ev(5, gen, wire.EventRankExited))
	if n := len(m.s.View().Job("a").Last().Exits); n != 1 {
		t.Fatalf("one rank has ended %d times", n)
	}
	before := m.render()
	m.facts("n1", ev(2, gen, wire.EventEnded), ev(5, gen, wire.EventEnded))
	if m.render() != before {
		t.Fatal("facts told twice have changed something")
	}
	m.facts("n1", ev(6, gen, wire.EventGone), ev(7, gen, wire.EventStarted))
	if a := m.s.View().Alloc(id); a == nil || !a.Gone || a.Acked != 7 {
		t.Fatalf("%+v", a)
	}
}

// TestNames: one live job a run, one live actor a name, and both are free again after
// the end.
func TestNames(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	zero := int64(0)
	actor := func(id, run, name string) SubmitJob {
		return SubmitJob{
			ID: id, Spec: api.JobSpec{Name: run, Ranks: 1, Kind: api.KindActor, Actor: &api.ActorSpec{Name: name, Class: "C"}},
			Group: "pg-" + id, GroupSpec: &api.GroupSpec{Bundles: []api.Bundle{{}}},
		}
	}
	m.ok(KindSubmitJob, actor("a1", "r1", "x"))
	m.refused("exists", KindSubmitJob, actor("a2", "r2", "x"))
	m.refused("conflict", KindSubmitJob, actor("a2", "r1", "y"))
	m.ok(KindSubmitJob, actor("a2", "r2", "y"))
	m.ok(KindSupervise, Supervise{Job: "a1", Attempt: -1, State: api.Stopped, ExitCode: &zero})
	m.ok(KindSubmitJob, actor("a3", "r1", "x"))
	if j := m.s.View().ActorNamed("", "x"); j == nil || j.ID != "a3" {
		t.Fatalf("%+v", j)
	}
}

// TestIdempotency: a key answers with what it made; with another request it is refused.
func TestIdempotency(t *testing.T) {
	m := newMachine(t)
	gs := &api.GroupSpec{Bundles: []api.Bundle{{}}}
	sub := func(id, fp string) SubmitJob {
		return SubmitJob{ID: id, Spec: api.JobSpec{Name: "a", Ranks: 1}, Group: "pg-" + id, GroupSpec: gs, Key: "k", Fingerprint: fp}
	}
	if r, _ := m.ok(KindSubmitJob, sub("a-1", "f")).(*Made); r.ID != "a-1" || r.At != 0 {
		t.Fatalf("%+v", r)
	}
	if r, _ := m.ok(KindSubmitJob, sub("a-2", "f")).(*Made); r.ID != "a-1" || r.At == 0 {
		t.Fatalf("%+v", r)
	}
	m.refused("key-reused", KindSubmitJob, sub("a-3", "other"))
	m.refused("key-reused", KindCreateGroup, CreateGroup{ID: "g", Key: "k", Fingerprint: "other"})
	if r, _ := m.ok(KindCreateGroup, CreateGroup{ID: "g", Key: "k", Fingerprint: "f"}).(*Made); r.ID != "a-1" {
		t.Fatalf("%+v", r)
	}
	if n := len(m.s.View().Jobs()); n != 1 {
		t.Fatalf("%d jobs", n)
	}
	// A refused request leaves no key behind: mended, it may be sent again.
	m.refused("conflict", KindSubmitJob, SubmitJob{ID: "b", Spec: api.JobSpec{Name: "a", Ranks: 1}, Group: "pg-b", GroupSpec: gs, Key: "k2"})
	if m.s.View().Key("k2") != nil {
		t.Fatal("a refused request has left its key")
	}
}

// TestTerminalIsFinal: no command changes how a job has ended (I25).
func TestTerminalIsFinal(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.submit("a", 1)
	m.place("pg-a", "n1", 1)
	gen := m.start("a", "n1", 1, -1)
	id := m.s.View().AllocsOf("a")[0].ID
	seven := int64(7)
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, State: api.Failed, ExitCode: &seven, Reason: &api.Reason{Text: "bad"}, End: &AttemptEnd{Cause: api.CauseUser}})
	want := *m.s.View().Job("a")
	m.ok(KindStopJob, StopJob{Job: "a", Reason: "late"})
	m.refused("conflict", KindSupervise, Supervise{Job: "a", Attempt: 0, State: api.Succeeded})
	m.refused("stale", KindFirstStep, FirstStep{Job: "a", Generation: gen})
	m.refused("not-found", KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 3, Generation: gen})
	for i, k := range []wire.EventKind{wire.EventStarted, wire.EventOwnerGone, wire.EventDamaged, wire.EventStartFailed, wire.EventGone} {
		m.facts("n1", wire.AllocEvent{Alloc: id, Seq: uint64(i + 1), Generation: gen, Kind: k, Message: "late"})
	}
	got := m.s.View().Job("a")
	if got.State != want.State || got.Ended != want.Ended || *got.ExitCode != 7 || got.Reason.Text != "bad" || got.Stop != nil {
		t.Fatalf("%+v, was %+v", got, want)
	}
}
