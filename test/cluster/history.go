package cluster

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// hashEvery is how often the state of all heads is compared (I6, I7).
const hashEvery = 128

// History looks at every command when the first head applies it, and at the hashes of
// all others. It keeps a plain model of what must not change any more.
type History struct {
	c *Cluster

	mu         sync.Mutex
	index      uint64
	view       *state.View
	entries    map[uint64][32]byte // of commands
	hashes     map[uint64][32]byte // of states
	replays    int                 // comparisons made
	commands   int
	placements int
	restarts   int // attempts after the first
	refusals   int
	newestGen  uint64
	gens       map[uint64]string // generation → job
	runGen     map[string]uint64
	commits    map[string]time.Time // run/generation/step → when its entry was first applied
	newestStep map[string]int64
	terminal   map[string]*state.Job
	instant    time.Time // of the newest entry
	atOnce     int       // entries at that instant
	wantAt     uint64    // index whose state's hash is asked for
	wanted     [32]byte
	wantedErr  error
}

// stopAt asks for the hash of the state at an index, as the next head applies it.
func (h *History) stopAt(index uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wantAt, h.wanted, h.wantedErr = index, [32]byte{}, fmt.Errorf("no head applied index %d", index)
}

func (h *History) stopped() ([32]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wanted, h.wantedErr
}

func newHistory(c *Cluster) *History {
	return &History{
		c: c, entries: map[uint64][32]byte{}, hashes: map[uint64][32]byte{}, gens: map[uint64]string{},
		runGen: map[string]uint64{}, commits: map[string]time.Time{}, newestStep: map[string]int64{}, terminal: map[string]*state.Job{},
	}
}

// committedAt is when the entry of a step was first applied.
func (h *History) committedAt(run string, gen uint64, step int64) (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.commits[stepKey(run, gen, step)]
	return at, ok
}

// View is the newest state that any head has shown.
func (h *History) View() *state.View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.view
}

// Counts says how much happened: commands, placements, restarts.
func (h *History) Counts() (commands, placements, restarts int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.commands, h.placements, h.restarts
}

// Refusals counts the commands that the state refused.
func (h *History) Refusals() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals
}

func (h *History) committed(run string, gen uint64, step int64) bool {
	_, ok := h.committedAt(run, gen, step)
	return ok
}

func hashOf(s *state.Store) ([32]byte, error) {
	var b bytes.Buffer
	if err := s.Snapshot().Persist(&b); err != nil {
		return [32]byte{}, fmt.Errorf("hash the state: %w", err)
	}
	return sha256.Sum256(b.Bytes()), nil
}

func (h *History) applied(head string, index uint64, data []byte, before *state.View, s *state.Store, result any) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := sha256.Sum256(data)
	if known, ok := h.entries[index]; ok && known != sum {
		h.c.fail("I5: %s applies another command at index %d than was applied before", head, index)
	}
	h.entries[index] = sum
	if index == h.wantAt {
		h.wanted, h.wantedErr = hashOf(s)
	}
	if index%hashEvery == 0 {
		hash, err := hashOf(s)
		if err != nil {
			h.c.fail("%v", err)
		}
		if known, ok := h.hashes[index]; ok {
			h.replays++
			if known != hash {
				h.c.fail("I6, I7: the state of %s at index %d is not what it was elsewhere", head, index)
			}
		}
		h.hashes[index] = hash
	}
	if index <= h.index {
		return false
	}
	h.index = index
	h.view = s.View()
	h.commands++
	if _, refused := result.(*state.Refused); refused {
		h.refusals++
	}
	h.spin(state.Kind(data[0]), result)
	h.check(state.Kind(data[0]), index, before, h.view, result)
	return true
}

// mostAtOnce entries at one instant are taken for a loop that feeds itself. Time does not
// pass while one turns, so that nothing else would ever end the test.
const mostAtOnce = 3000

func (h *History) spin(kind state.Kind, result any) {
	now := time.Now()
	if !now.Equal(h.instant) {
		h.instant, h.atOnce = now, 0
	}
	if h.atOnce++; h.atOnce > mostAtOnce {
		panic(fmt.Sprintf("seed %d: %d entries at one instant; the newest is of kind %d, with the result %+v", h.c.Options.Seed, h.atOnce, kind, result))
	}
}

// check compares two views around one command.
func (h *History) check(kind state.Kind, index uint64, before, after *state.View, result any) {
	bad := func(format string, args ...any) {
		h.c.fail("index %d, kind %d: %s", index, kind, fmt.Sprintf(format, args...))
	}
	if kind == state.KindSetNodeState {
		h.losses(before, after, bad)
	}
	if st, ok := result.(*state.Started); ok {
		// P3, I9: generations only grow, cluster-wide.
		if st.Generation <= h.newestGen {
			bad("P3: generation %d after %d", st.Generation, h.newestGen)
		}
		h.newestGen = max(h.newestGen, st.Generation)
		if st.Number > 0 {
			h.restarts++
		}
	}
	h.jobs(kind, before, after, bad)
	h.groups(after, bad)
	h.accounts(kind, before, after, bad)
	h.checkpoints(kind, index, after, bad)
	h.hosts(after, bad)
}

// losses: no node is declared lost while ranks of its groups advance on nodes that the
// head hears. Where the network is disturbed, the head cannot know.
func (h *History) losses(before, after *state.View, bad func(string, ...any)) {
	if h.c.disturbed() {
		return
	}
	for _, n := range after.Nodes() {
		old := before.Node(n.ID)
		if n.State != api.NodeLost || n.Hold != 0 || old == nil || old.State == api.NodeLost {
			continue
		}
		for _, a := range after.AllocsOn(n.ID) {
			j := after.Job(a.Job)
			if j == nil || j.Last() == nil || j.Stop != nil || j.Last().Ended != 0 || j.Last().Aborted != 0 || j.Last().Generation != a.Generation || len(j.Last().Exits) > 0 {
				continue
			}
			heard := false
			for _, r := range j.Last().Ranks {
				heard = heard || r.Node != n.ID && h.c.Node(r.Node).speaks()
			}
			if d, ever := h.c.world(a.Generation, int64(len(j.Last().Ranks))).still(); heard && ever && d < 1400*time.Millisecond {
				bad("node %s is lost %s after a rank of %s has advanced elsewhere", n.ID, d, j.ID)
			}
		}
	}
}

func (h *History) jobs(_ state.Kind, before, after *state.View, bad func(string, ...any)) {
	for id, old := range h.terminal {
		now := after.Job(id)
		if now == nil {
			delete(h.terminal, id) // the history is bounded
			continue
		}
		// I25: written once.
		if now.State != old.State || now.Ended != old.Ended || !reflect.DeepEqual(now.ExitCode, old.ExitCode) ||
			!reflect.DeepEqual(now.Reason, old.Reason) || len(now.Attempts) != len(old.Attempts) {
			bad("I25: job %s was %s and is %s", id, old.State, now.State)
		}
	}
	live := map[string]string{}
	for _, j := range before.LiveJobs() {
		now := after.Job(j.ID)
		if now == nil {
			bad("I25: live job %s has vanished", j.ID)
			continue
		}
		if now.State.Terminal() {
			h.terminal[j.ID] = now
			h.budget(now, bad)
			if now.ExitCode == nil && now.State != api.Stopped || now.Ended == 0 {
				bad("I25: job %s is %s without an exit code or an end", j.ID, now.State)
			}
		}
	}
	for _, j := range after.LiveJobs() {
		if other := live[j.Run()]; other != "" {
			bad("run %s has two live jobs, %s and %s", j.Run(), other, j.ID)
		}
		live[j.Run()] = j.ID
		h.attempts(j, before, bad)
	}
}

func (h *History) attempts(j *state.Job, before *state.View, bad func(string, ...any)) {
	last := j.Last()
	if last == nil {
		return
	}
	old := before.Job(j.ID)
	if old != nil && old.Last() != nil && last.Number < old.Last().Number {
		bad("P9: job %s went from attempt %d to %d", j.ID, old.Last().Number, last.Number)
	}
	if owner, ok := h.gens[last.Generation]; ok && owner != j.ID {
		bad("P3: generation %d belongs to %s and to %s", last.Generation, owner, j.ID)
	}
	h.gens[last.Generation] = j.ID
	h.runGen[j.Run()] = max(h.runGen[j.Run()], last.Generation)
	for i := 1; i < len(j.Attempts); i++ {
		a, b := &j.Attempts[i-1], &j.Attempts[i]
		if b.Number != a.Number+1 || b.Generation <= a.Generation || a.Ended == 0 {
			bad("P9: attempts %d and %d of %s do not follow each other", a.Number, b.Number, j.ID)
		}
	}
}

// budget: restarts are within what the policy allows, exactly (I15).
func (h *History) budget(j *state.Job, bad func(string, ...any)) {
	l, p := j.Ledger, j.Spec.Restart
	if got := l.User + l.Infra + l.Hang; got > l.Failed {
		bad("P9: the ledger of %s charges %d of %d failures", j.ID, got, l.Failed)
	}
	charged := int64(0)
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if a.Ended != 0 && a.Cause != api.CauseNone && a.Cause != "" {
			charged++
		}
	}
	if len(j.Attempts) < state.MaxAttempts && charged != l.Failed {
		bad("I15: job %s has %d failed attempts and a ledger of %d", j.ID, charged, l.Failed)
	}
	limit := func(v *int64, def int64) int64 {
		if v == nil {
			return def
		}
		return *v
	}
	if p.MaxRestarts != nil {
		if l.Failed > *p.MaxRestarts+1 {
			bad("I15: job %s failed %d times with %d restarts", j.ID, l.Failed, *p.MaxRestarts)
		}
	} else if j.Spec.Actor == nil {
		if l.User > limit(p.User, 3)+1 || l.Infra > limit(p.Infra, 20)+1 {
			bad("I15: job %s was charged %+v", j.ID, l)
		}
	}
}

func (h *History) groups(after *state.View, bad func(string, ...any)) {
	placed := 0
	for _, g := range after.Groups() {
		if g.State != api.GroupPlaced {
			if len(g.Placed) != 0 {
				bad("P1: group %s is %s and has bundles", g.ID, g.State)
			}
			continue
		}
		if g.Index == after.Index() && g.PlacedAt != 0 {
			placed++
		}
		if len(g.Placed) != len(g.Spec.Bundles) {
			bad("P1: group %s has %d of %d bundles", g.ID, len(g.Placed), len(g.Spec.Bundles))
		}
		checkStrategy(g, bad)
	}
	h.placements += placed
}

// checkStrategy: a strict placement is what its name says, at any moment; so are as many
// bundles on each node as were asked for. Spare bundles stand beside it, on other nodes.
func checkStrategy(g *state.Group, bad func(string, ...any)) {
	nodes := map[string]int{}
	ranks := g.RankBundles()
	for _, b := range ranks {
		nodes[b.Node]++
	}
	switch {
	case g.Spec.Strategy == api.StrictPack && len(nodes) > 1:
		bad("group %s is STRICT_PACK and stands on %d nodes", g.ID, len(nodes))
	case g.Spec.Strategy == api.StrictSpread && len(nodes) != len(ranks):
		bad("group %s is STRICT_SPREAD and stands on %d nodes with %d bundles", g.ID, len(nodes), len(ranks))
	}
	for node, n := range nodes {
		if k := g.Spec.PerNode; k > 0 && int64(n) != k {
			bad("group %s has %d bundles on %s, wants %d on each node", g.ID, n, node, k)
		}
	}
	for _, node := range g.SpareNodes() {
		if nodes[node] > 0 {
			bad("group %s has ranks on %s, which is a spare node of it", g.ID, node)
		}
	}
}

// liveRun reports whether a job of the run lives.
func liveRun(v *state.View, run string) bool {
	r := v.Run(run)
	if r == nil {
		return false
	}
	j := v.Job(r.Job)
	return j != nil && !j.State.Terminal()
}

// checkpoints: each (run, step) commits once, by the current generation, with every
// rank's files truly written; the newest goes back by a roll-back only (P4, I19, I20).
func (h *History) checkpoints(kind state.Kind, index uint64, after *state.View, bad func(string, ...any)) {
	newest := map[string]int64{}
	for _, ck := range after.Checkpoints("") {
		k := stepKey(ck.Run, ck.Generation, ck.Step)
		if _, known := h.commits[k]; !known {
			h.commits[k] = time.Now()
			adopted := ck.Adopted != "" && kind == state.KindAdoptCheckpoints
			if adopted { // another cluster's; its files were read before
				if m := after.Meta(); ck.Generation > m.Epoch<<48|m.Counter {
					bad("P3: step %d of run %s was adopted with generation %d above the counter", ck.Step, ck.Run, ck.Generation)
				}
				continue
			}
			if kind != state.KindCommitCheckpoint {
				bad("P4: step %d of run %s appeared", ck.Step, ck.Run)
			}
			if ck.Generation < h.runGen[ck.Run] {
				bad("P3: generation %d commits step %d of run %s; %d exists", ck.Generation, ck.Step, ck.Run, h.runGen[ck.Run])
			}
			h.suspects(ck, after, bad)
			if got := h.c.Hosts.preparedRanks(ck.Run, ck.Generation, ck.Step); int64(got) != ck.World || ck.World == 0 {
				bad("P4: step %d of run %s is committed for %d ranks, %d have written", ck.Step, ck.Run, ck.World, got)
			}
		}
		if ck.State == state.CheckpointCommitted {
			if n, ok := newest[ck.Run]; ok && n == ck.Step {
				bad("P4: step %d of run %s is committed twice", ck.Step, ck.Run)
			}
			newest[ck.Run] = max(newest[ck.Run], ck.Step)
		}
	}
	for run, was := range h.newestStep {
		asked := kind == state.KindTombstone && !liveRun(after, run) // a user removes it
		if newest[run] < was && kind != state.KindRollBack && !asked {
			bad("I20: the newest step of run %s went from %d to %d", run, was, newest[run])
		}
	}
	h.newestStep = newest
}

// suspects: nothing commits while a node of the group is suspect.
func (h *History) suspects(ck *state.Checkpoint, after *state.View, bad func(string, ...any)) {
	r := after.Run(ck.Run)
	if r == nil || after.Job(r.Job) == nil || after.Job(r.Job).Last() == nil {
		return
	}
	last := after.Job(r.Job).Last()
	for _, rank := range last.Ranks {
		if n := after.Node(rank.Node); last.Generation == ck.Generation && n != nil && n.State == api.NodeSuspect {
			bad("step %d of run %s is committed while node %s of rank %d is suspect", ck.Step, ck.Run, n.ID, rank.Rank)
		}
	}
}

// hosts: whatever truly runs is charged in the books, and of a generation that the
// log has made (P2, P3).
func (h *History) hosts(after *state.View, bad func(string, ...any)) {
	for _, p := range h.c.Hosts.snapshot() {
		a := after.Alloc(p.alloc)
		if a == nil || a.Gone {
			bad("P2: %v runs and the books say that it is gone", &p)
			continue
		}
		for _, id := range a.Holds {
			if after.Hold(id) == nil {
				bad("P2: %v runs and hold %s is freed", &p, id)
			}
		}
		for _, d := range p.devices {
			if !slices.ContainsFunc(a.Holds, func(id string) bool {
				hold := after.Hold(id)
				return hold != nil && slices.Contains(hold.Devices, d)
			}) {
				bad("P2: %v uses device %s, which is not charged to it", &p, d)
			}
		}
		if h.gens[p.gen] != p.job {
			bad("P3: %v runs with a generation that the log did not give it", &p)
		}
	}
}
