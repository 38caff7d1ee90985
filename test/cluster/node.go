package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/agent"
	"github.com/troupe-runtime/troupe/worker/gpu"
)

// NodeOptions describe one machine.
type NodeOptions struct {
	ID     string
	CPU    unit.MilliCPU // default 8000
	Memory unit.Bytes    // default 16 GiB
	GPUs   string        // as of --gpus, "fake:2x80GiB"; default none
	Labels map[string]string
}

// Node is one machine: what survives its agent lives here.
type Node struct {
	NodeOptions
	c   *Cluster
	dir string

	mu         sync.Mutex
	boots      int
	up         bool
	agent      *running
	shims      map[string]*simShim // by allocation
	stragglers map[string][]*rank
	pid        int
	ports      *simPorts
	own        *disk.Mem // its store is a folder of its own; nil: the cluster's shared disk
	fails      int       // starts of shims that fail from now on
	clock      clock.Clock
	ahead      time.Duration // by which the boot clock was made to jump
	wall       time.Duration // by which the wall clock is wrong
	off        bool          // cut off the bus
	stunned    bool          // the agent is stopped by a signal
}

// running is one life of an agent.
type running struct {
	conn bus.Conn
	stop context.CancelFunc
	// leave announces a restart.
	leave func(context.Context) error
	// notice is the signal that the machine is about to be taken away.
	notice func(signal string)
	done   chan struct{}
}

// disk is where the node finds the checkpoint store.
func (n *Node) disk() *disk.Mem {
	if n.own != nil {
		return n.own
	}
	return n.c.Disk
}

func (c *Cluster) newNode(o NodeOptions) *Node {
	if o.CPU == 0 {
		o.CPU = 8000
	}
	if o.Memory == 0 {
		o.Memory = 16 * unit.GiB
	}
	n := &Node{
		NodeOptions: o, c: c, dir: filepath.Join(c.dir, o.ID), shims: map[string]*simShim{},
		stragglers: map[string][]*rank{}, pid: 100, ports: &simPorts{next: 20000}, clock: clock.Virtual(),
	}
	c.Hosts.capacity[o.ID] = capacity{cpu: o.CPU, memory: o.Memory}
	return n
}

func (n *Node) boottime() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock.Boot() + time.Second + n.ahead
}

// Jump moves the node's clocks: the boot clock forward only, as after a sleep of the
// machine, the wall clock by anything.
func (n *Node) Jump(boot, wall time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ahead += max(0, boot)
	n.wall = wall
}

// bootClock gives agents the node's boot clock; it starts above zero, as zero means none.
type bootClock struct {
	clock.Clock
	n *Node
}

func (b bootClock) Boot() time.Duration { return b.n.boottime() }

func (b bootClock) Now() time.Time {
	b.n.mu.Lock()
	defer b.n.mu.Unlock()
	return b.Clock.Now().Add(b.n.wall)
}

func (n *Node) boot() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("%s-boot-%d", n.ID, n.boots)
}

func (n *Node) identity() string { return nodeIdentity + n.ID }

// Identities on the bus: of the agent, and of the node's shims.
const (
	nodeIdentity = "node-"
	shimIdentity = "shim-"
)

// Boot powers the machine on and starts its agent.
func (n *Node) Boot() {
	n.mu.Lock()
	n.boots++
	n.up = true
	n.mu.Unlock()
	n.StartAgent()
}

// Recover starts the agent on a machine whose processes were all killed.
func (n *Node) Recover() {
	n.mu.Lock()
	n.up = true
	n.mu.Unlock()
	n.StartAgent()
}

// StartAgent starts the agent, unless it runs or the machine is off.
func (n *Node) StartAgent() {
	n.mu.Lock()
	if !n.up || n.agent != nil {
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	n.c.disturb(5 * time.Second) // it runs, and the head has not heard it yet
	g, err := gpu.Open(n.gpuSpec(), n.ID, n.c.logger(n.ID))
	if err != nil {
		n.c.fail("node %s: %v", n.ID, err)
		return
	}
	conn := n.c.Bus.Connect(n.identity(), bus.Permission{
		Publish: []string{
			wire.HeadRegister + n.ID, wire.HeadHeartbeat + n.ID, wire.HeadReport + n.ID, wire.HeadPrepared + n.ID, wire.HeadFetch + n.ID,
			wire.HeadNotice + n.ID,
		},
		Subscribe: []string{"n." + n.ID + ".>"}, Inbox: wire.InboxPrefix(n.identity()),
	})
	a, err := agent.New(agent.Options{
		NodeID: n.ID, Name: n.ID, Address: "10.0.0.1", StateDir: filepath.Join(n.dir, "state"), SocketRoot: filepath.Join(n.c.dir, "s-"+n.ID),
		Labels: n.Labels, CPU: n.CPU, Memory: n.Memory, GPU: g, Bus: tap{conn, n.c, n}, Clock: bootClock{n.clock, n}, Logger: n.c.logger(n.ID),
		Version: "sim", Launcher: launcher{n}, Ports: n.ports, Disk: n.disk(), BootID: n.boot(), Random: n.c.random, NoSocket: true,
		NoticeFile: n.noticeFile(),
	})
	if err != nil {
		n.c.fail("node %s: the agent does not start: %v", n.ID, err)
		conn.Close()
		return
	}
	ctx, cancel := context.WithCancel(n.c.ctx)
	r := &running{conn: conn, stop: cancel, leave: a.AnnounceRestart, notice: a.NoticeSignal, done: make(chan struct{})}
	n.mu.Lock()
	n.agent = r
	n.mu.Unlock()
	n.c.spawn(func() {
		defer close(r.done)
		if err := a.Run(ctx); err != nil && ctx.Err() == nil {
			n.c.fail("node %s: the agent ended: %v", n.ID, err)
		}
	})
}

func (n *Node) gpuSpec() string {
	if n.GPUs == "" {
		return "none"
	}
	return n.GPUs
}

// KillAgent ends the agent as SIGKILL would: not one more word of it is heard. Shims
// and ranks go on.
func (n *Node) KillAgent() {
	n.mu.Lock()
	r := n.agent
	n.agent = nil
	n.mu.Unlock()
	if r == nil {
		return
	}
	r.conn.Close()
	r.stop()
	<-r.done
}

// LeaveAgent ends the agent with an announcement of its restart.
func (n *Node) LeaveAgent() {
	n.mu.Lock()
	r := n.agent
	n.mu.Unlock()
	if r != nil {
		_ = r.leave(n.c.ctx) // nobody may hear it
		n.KillAgent()
	}
}

// RestartAgent kills the agent and starts it again.
func (n *Node) RestartAgent() {
	n.KillAgent()
	n.StartAgent()
}

// Kill cuts the machine's power: everything on it ends at once, nobody is told.
func (n *Node) Kill() {
	n.offline(true)
	n.KillProcesses()
	n.offline(false)
}

// KillProcesses ends everything on the machine at once; its kernel closes the connections.
func (n *Node) KillProcesses() {
	n.mu.Lock()
	n.up = false
	shims := make([]*simShim, 0, len(n.shims))
	for _, s := range n.shims {
		shims = append(shims, s)
	}
	n.mu.Unlock()
	for _, s := range shims {
		s.die(false)
	}
	n.mu.Lock()
	allocs := make([]string, 0, len(n.stragglers))
	for a := range n.stragglers {
		allocs = append(allocs, a)
	}
	n.mu.Unlock()
	for _, a := range allocs {
		n.sweep(a)
	}
	n.KillAgent()
}

// Up reports whether the machine has power.
func (n *Node) Up() bool { return !n.cutPower() }

func (n *Node) cutPower() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.up
}

// Cut takes the node off the bus silently, Heal brings it back.
func (n *Node) Cut() {
	n.mu.Lock()
	n.off = true
	n.mu.Unlock()
	n.offline(true)
}

// Heal ends a Cut.
func (n *Node) Heal() {
	n.mu.Lock()
	n.off = false
	n.mu.Unlock()
	n.offline(false)
}

// CutAgent takes the agent alone off the bus.
func (n *Node) CutAgent() { n.c.Bus.Cut(n.identity(), "*") }

// offline cuts or mends the links of agent and shims; a Cut stays.
func (n *Node) offline(cut bool) {
	n.mu.Lock()
	cut = cut || n.off
	n.mu.Unlock()
	for _, id := range []string{n.identity(), shimIdentity + n.ID} {
		if cut {
			n.c.Bus.Cut(id, "*")
		} else {
			n.c.Bus.Heal(id, "*")
		}
	}
}

// Stun stops the agent as SIGSTOP would, or lets it go on: it keeps its connections and
// says nothing.
func (n *Node) Stun(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stunned = on
}

func (n *Node) isStunned() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stunned
}

// speaks reports whether the agent runs and nothing cuts the node off.
func (n *Node) speaks() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up && n.agent != nil && !n.off
}

// KillShim kills the shim of a job's allocation on this node; false: there is none.
func (n *Node) KillShim(job string) bool {
	s := n.shimOf(job)
	if s == nil {
		return false
	}
	s.die(true)
	return true
}

// KillRank kills one rank of a job from outside; false: it does not run here.
func (n *Node) KillRank(job string, number int64) bool {
	s := n.shimOf(job)
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.att.active() {
		return false
	}
	for _, r := range s.att.ranks {
		if r.spec.Rank == number && !r.ended {
			r.kill(&wire.RankExit{Code: -1, Signal: 9, Message: "killed by signal 9 (SIGKILL)"})
			s.leave()
			return true
		}
	}
	return false
}

// FailShims makes the next k starts of shims fail.
func (n *Node) FailShims(k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails = k
}

func (n *Node) failShims() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return true
	}
	return false
}

func (n *Node) shimOf(job string) *simShim {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := make([]string, 0, len(n.shims))
	for id, s := range n.shims {
		if s.cfg.Job == job {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return n.shims[ids[len(ids)-1]]
}

func (n *Node) shim(alloc string) *simShim {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shims[alloc]
}

func (n *Node) addShim(s *simShim) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up {
		return errors.New("the machine is off")
	}
	if n.shims[s.cfg.Alloc] != nil {
		n.c.fail("I4: a second shim is started for allocation %s on %s", s.cfg.Alloc, n.ID)
		return os.ErrExist
	}
	n.shims[s.cfg.Alloc] = s
	return nil
}

func (n *Node) dropShim(s *simShim) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.shims, s.cfg.Alloc)
}

func (n *Node) nextPID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pid++
	return n.pid
}

// straggle leaves a rank of a dead shim behind until it is swept, or the kernel is
// through with it: P6 gives the agent a second.
func (n *Node) straggle(alloc string, r *rank) {
	n.mu.Lock()
	n.stragglers[alloc] = append(n.stragglers[alloc], r)
	n.mu.Unlock()
	time.AfterFunc(900*time.Millisecond, func() {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		r.kill(nil)
	})
}

func (n *Node) sweep(alloc string) {
	n.mu.Lock()
	list := n.stragglers[alloc]
	delete(n.stragglers, alloc)
	n.mu.Unlock()
	for _, r := range list {
		r.s.mu.Lock()
		r.kill(nil)
		r.s.mu.Unlock()
	}
}

// simPorts offers numbers.
type simPorts struct {
	mu   sync.Mutex
	next int64
	free []int64
}

// Offer implements agent.Ports.
func (p *simPorts) Offer() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.free) < 4 {
		p.next++
		p.free = append(p.free, p.next)
	}
	return slices.Clone(p.free)
}

// Use implements agent.Ports.
func (p *simPorts) Use(port int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = slices.DeleteFunc(p.free, func(f int64) bool { return f == port })
}

// Release implements agent.Ports.
func (p *simPorts) Release(int64) {}

// Close implements agent.Ports.
func (p *simPorts) Close() {}
