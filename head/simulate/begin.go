package simulate

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/head/declare"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// machine is one node of the run.
type machine struct {
	node
	info  wire.NodeInfo
	boot  int
	seq   uint64
	lost  bool
	free  int64 // thousandths of devices that nobody has
	total int64
	dice  *rand.Rand
	gpus  []*rand.Rand // of each device; nil when devices do not fail
	ill   []bool
}

// begin makes the cluster and puts the jobs into the future.
func (s *sim) begin() error {
	if err := s.must(state.KindCreateCluster, state.CreateCluster{Cluster: "simulated", Life: "00000000"}); err != nil {
		return err
	}
	for i, n := range s.cluster.machines() {
		if _, twice := s.byNode[n.id]; twice {
			return ClusterError{fmt.Sprintf("two nodes are named %s; give the groups of nodes names of their own", n.id)}
		}
		s.byNode[n.id] = i
		s.nodes = append(s.nodes, s.machine(n))
		if err := s.register(i); err != nil {
			return err
		}
	}
	for i := range s.nodes {
		s.breaks(i)
	}
	if err := s.settle(); err != nil {
		return err
	}
	s.jobs = make([]job, len(s.trace.Jobs))
	s.result.Jobs = make([]Outcome, len(s.trace.Jobs))
	s.left = len(s.jobs)
	for i := range s.jobs {
		s.sized = s.sized || s.trace.Jobs[i].Spec.Sizes.Any()
		s.jobs[i] = job{Job: &s.trace.Jobs[i], out: &s.result.Jobs[i]}
		s.result.Jobs[i].Job = s.jobs[i].Job
		s.at(s.jobs[i].Submit, event{what: jobArrives, job: i})
	}
	return nil
}

// ClusterError is what is wrong with what a cluster file declares beside its nodes.
type ClusterError []string

// Error lists it in one line.
func (e ClusterError) Error() string { return strings.Join(e, "; ") }

// settle declares what the cluster file says beside its nodes, checked and by the commands
// as if an operator did.
func (s *sim) settle() error {
	c := s.cluster
	var bad ClusterError
	check := func(at string, errs []api.FieldError) {
		for _, e := range errs {
			bad = append(bad, strings.TrimPrefix(at+fieldOf(e.Pointer), ".")+": "+e.Detail)
		}
	}
	check("levels", schedule.ValidateLevels(c.Levels))
	if len(bad) > 0 {
		return bad
	}
	settings := state.PutSettings{Policy: &c.Policy.SchedulerPolicy}
	if len(c.Levels) > 0 {
		settings.Levels = &c.Levels
	}
	if err := s.must(state.KindPutSettings, settings); err != nil {
		return err
	}
	for i := range c.Capacities {
		check(fmt.Sprintf("capacities[%d]", i), declare.Capacity(&c.Capacities[i], s.store.View()))
	}
	if len(bad) > 0 {
		return bad
	}
	if len(c.Capacities) > 0 {
		if err := s.must(state.KindPutCapacities, state.PutCapacities{Capacities: c.Capacities}); err != nil {
			return err
		}
	}
	if check("", declare.Queues(c.Queues, nil, s.store.View())); len(bad) > 0 {
		return bad
	}
	if len(c.Queues) > 0 {
		if err := s.must(state.KindPutQueues, state.PutQueues{Queues: c.Queues, Whole: true}); err != nil {
			return err
		}
		s.tree = s.store.View().Tree()
	}
	for i := range c.Reservations {
		r := &c.Reservations[i]
		if check(fmt.Sprintf("reservations[%d]", i), declare.Reservation(r, s.store.View(), s.time())); len(bad) > 0 {
			return bad
		}
		if err := s.must(state.KindPutReservation, state.PutReservation{Reservation: *r}); err != nil {
			return err
		}
	}
	return nil
}

// fieldOf turns a pointer into the words of a file: /queues/0/name is queues[0].name.
func fieldOf(pointer string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		switch _, err := strconv.Atoi(word); {
		case word == "":
		case err == nil:
			b.WriteString("[" + word + "]")
		default:
			b.WriteString("." + word)
		}
	}
	return b.String()
}

func (s *sim) machine(n node) machine {
	m := machine{node: n, total: 1000 * n.group.GPUs}
	m.free = m.total
	m.info = wire.NodeInfo{
		Name: n.name, Address: n.name, Labels: n.labels, CPU: n.group.CPU, Memory: n.group.Memory, Level: wire.Level, Session: "s", Version: "simulated",
	}
	if m.info.CPU == 0 {
		m.info.CPU = schedule.MaxCPU // not said, so not a limit
	}
	if m.info.Memory == 0 {
		m.info.Memory = schedule.MaxMemory
	}
	usable := int64(n.group.GPUMemory)
	if usable == 0 {
		usable = 80 << 30
	}
	for k := range n.group.GPUs {
		m.info.GPUs = append(m.info.GPUs, api.GPU{Index: k, UUID: fmt.Sprintf("%s-gpu-%d", n.id, k), Model: n.group.Model, Total: usable, Usable: usable})
	}
	m.dice = stream(s.Seed, "node "+n.id)
	if s.cluster.Failures.GPU.MTBF > 0 {
		m.ill = make([]bool, n.group.GPUs)
		for k := range n.group.GPUs {
			m.gpus = append(m.gpus, stream(s.Seed, fmt.Sprintf("gpu %s %d", n.id, k)))
		}
	}
	s.meter.add(m.total)
	return m
}

// register tells the state of a node: that it is there, or there again.
func (s *sim) register(i int) error {
	m := &s.nodes[i]
	m.seq++
	m.info.BootID = fmt.Sprintf("boot-%d", m.boot)
	var present []string
	for _, a := range s.store.View().AllocsOn(m.id) {
		if !a.Gone {
			present = append(present, a.ID)
		}
	}
	return s.must(state.KindRegisterNode, state.RegisterNode{ID: m.id, Info: m.info, Seq: m.seq, Present: present})
}

// breaks draws when a node and its devices fail next.
func (s *sim) breaks(i int) {
	m := &s.nodes[i]
	if d, ok := s.cluster.Failures.Node.lives(m.dice); ok {
		s.at(d, event{what: nodeFails, job: i})
	}
	for k := range m.gpus {
		s.gpuBreaks(i, k)
	}
}

func (s *sim) gpuBreaks(i, k int) {
	if d, ok := s.cluster.Failures.GPU.lives(s.nodes[i].gpus[k]); ok {
		s.at(d, event{what: gpuFails, job: i, gpu: k})
	}
}

// finish gathers what the run came to.
func (s *sim) finish() *Result {
	r := &s.result
	r.Samples, r.Ended, r.Commands = s.meter.samples, s.now, s.index
	for _, name := range []string{"snapshot", "order", "plan", "place", "preempt"} {
		if s.Clock != nil {
			r.Phases = append(r.Phases, schedule.Phase{Name: name, Took: s.took[name]})
		}
	}
	for i := range s.jobs {
		j := &s.jobs[i]
		s.book(j)
		if j.running {
			s.useful(j, s.work(j)) // it is cut off, which is nobody's loss
		}
		j.out.Lost = max(0, j.out.Busy-j.out.Saving-j.out.Useful)
	}
	s.reasons()
	return r
}

// reasons asks why what never started waits.
func (s *sim) reasons() {
	snap := s.snapshot()
	if len(snap.Pending) == 0 {
		return
	}
	plan := s.planner.Plan(snap, s.time())
	for _, r := range snap.Pending {
		if why := plan.Why(r.ID); len(why) > 0 && len(s.result.Waiting) < mostReasons {
			s.result.Waiting[r.Name] = why[0].Text
		}
	}
}

// mostReasons bounds how many reasons a report has.
const mostReasons = 100
