package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// createGroup makes a placement group of its own.
func (c *Cluster) createGroup(spec api.GroupSpec) string {
	c.T.Helper()
	made, err := c.Leader().running().control.CreateGroup(c.ctx, spec, headapi.Idempotency{})
	if err != nil {
		c.T.Fatal(err)
	}
	return made.ID
}

// TestTwoGangsOneNodeLost: two gangs that each need both kinds of node, of which only
// three are left: one is whole, the other waits whole; neither holds a part (P1).
func TestTwoGangsOneNodeLost(t *testing.T) {
	Run(t, Options{Nodes: four("l1", "l1", "l2", "l2")}, func(c *Cluster) {
		spec := api.GroupSpec{Strategy: api.StrictSpread, Bundles: []api.Bundle{
			{Resources: api.Resources{CPU: 2000}, Labels: map[string]string{"class": "l1"}},
			{Resources: api.Resources{CPU: 2000}, Labels: map[string]string{"class": "l2"}},
		}}
		var jobs []string
		for i := range 2 {
			js := NewSpec(fmt.Sprintf("j%d", i), 2, Script{Steps: 100000, StepTime: 100 * ms})
			js.PlacementGroup, js.Resources = c.createGroup(spec), api.Resources{}
			jobs = append(jobs, c.Submit(js))
		}
		for _, j := range jobs {
			c.WaitStep(j, 3, time.Minute)
		}
		c.Node("n1").Kill()
		c.Wait("one gang runs, the other waits whole", 5*time.Minute, func(v *state.View) bool {
			placed, waiting := 0, 0
			for _, g := range v.Groups() {
				if g.State == api.GroupPlaced {
					placed++
				} else {
					waiting++
				}
			}
			return placed == 1 && waiting == 1
		})
		// It stays so, and both ask again and again.
		time.Sleep(time.Minute)
		running := 0
		for _, j := range jobs {
			if c.View().Job(j).State == api.Running {
				running++
			}
		}
		if running != 1 {
			t.Errorf("%d jobs run\n%s", running, c.Describe())
		}
		c.Node("n1").Boot()
		for _, j := range jobs {
			c.WaitState(j, 5*time.Minute, api.Running)
		}
	})
}

// TestStop: stop returns when the processes are gone, whatever the job was doing (P11).
func TestStop(t *testing.T) {
	cases := []struct {
		name   string
		script Script
		until  api.JobState
		most   time.Duration
	}{
		{"running", Script{Steps: 100000, StepTime: 100 * ms}, api.Running, 5 * time.Second},
		{"starting", Script{Steps: 100000, StepTime: 100 * ms, Start: 3 * time.Second}, api.Starting, 10 * time.Second},
		{"ignores SIGTERM", Script{Steps: 100000, StepTime: 100 * ms, Stubborn: true}, api.Running, 15 * time.Second},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
				spec := NewSpec("a", 4, k.script)
				spec.ShutdownTimeout = unit.Duration(10 * time.Second)
				id := c.Submit(spec)
				c.WaitState(id, time.Minute, k.until)
				start := time.Now()
				j, err := c.Stop(id, 0, 5*time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(start); d > k.most {
					t.Errorf("it took %s", d)
				}
				if j.State != api.Stopped || len(c.Hosts.Live(id)) != 0 {
					t.Errorf("%s, and %v runs", j.State, c.Hosts.Live(id))
				}
				c.books()
			})
		})
	}
}

// TestStopQueued: a job that waits ends at once.
func TestStopQueued(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		a := c.Submit(NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms}))
		c.WaitState(a, time.Minute, api.Running)
		b := c.Submit(NewSpec("b", 2, Script{Steps: 1, StepTime: ms}))
		if s := c.View().Job(b).State; s != api.Queued {
			t.Fatalf("b is %s", s)
		}
		start := time.Now()
		j, err := c.Stop(b, 0, time.Minute)
		if err != nil || j.State != api.Stopped {
			t.Fatalf("%s %v", j.State, err)
		}
		if d := time.Since(start); d >= time.Second {
			t.Errorf("it took %s", d)
		}
		if n := c.Hosts.Starts(b); n != 0 {
			t.Errorf("%d ranks of it were started", n)
		}
	})
}

// TestStopNamesUnreachable: a node that cannot be reached is named (P11).
func TestStopNamesUnreachable(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms}))
		c.WaitState(id, time.Minute, api.Running)
		c.Node("n2").Cut()
		_, err := c.Stop(id, time.Second, 5*time.Minute)
		var p *api.Problem
		if !errors.As(err, &p) || !strings.Contains(p.Detail, "n2") || strings.Contains(p.Detail, "n1") {
			t.Fatalf("%v", err)
		}
		for _, live := range c.Hosts.Live(id) {
			if strings.HasSuffix(live, "n1") {
				t.Errorf("still runs: %s", live)
			}
		}
		c.Node("n2").Heal()
		c.books()
		if s := c.View().Job(id).State; s != api.Stopped {
			t.Errorf("it is %s", s)
		}
	})
}

// TestManyCycles: after 500 jobs that end, fail, are stopped and are killed, at every
// moment of their lives, the books are what they were (P8).
func TestManyCycles(t *testing.T) {
	cycles := 500
	if testing.Short() {
		cycles = 60
	}
	Run(t, Options{Nodes: four(), Seed: 10}, func(c *Cluster) {
		zero := int64(0)
		for i := range cycles {
			spec := NewSpec(fmt.Sprintf("j%d", i), int64(1+i%5), Script{Steps: int64(i % 4), StepTime: 50 * ms, Start: time.Duration(i%3) * 30 * ms, Exit: int64(i % 7 / 6)})
			spec.Restart.MaxRestarts = &zero
			spec.Restart.NoBackoff = true
			id, err := c.TrySubmit(spec, headapi.Idempotency{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(i%11) * 20 * ms)
			switch i % 4 {
			case 0:
				for _, n := range c.nodes {
					n.KillRank(id, 0)
				}
			case 1:
				if _, err := c.Stop(id, ms, time.Minute); err != nil {
					t.Fatalf("cycle %d: %v", i, err)
				}
			case 2:
				for _, n := range c.nodes {
					n.KillShim(id)
				}
			}
			c.WaitState(id, time.Minute, api.Succeeded, api.Failed, api.Stopped)
		}
		c.books()
		for _, n := range c.View().Nodes() {
			if u := c.View().UseOf(n.ID); u.CPU != 0 || u.Memory != 0 || len(u.Devices) != 0 {
				t.Errorf("%s is charged %+v", n.ID, u)
			}
		}
	})
}

// TestOldMessages: everything that nodes have ever said is said once more, while and
// after a job ran; nothing changes but the log's index (F27, I12).
func TestOldMessages(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		c.Tape()
		c.Node("n1").RestartAgent()
		spec := NewSpec("a", 4, Script{Steps: 60, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 12, time.Minute)
		c.Node("n1").KillRank(id, 0)
		c.Node("n2").KillRank(id, 0)
		c.Wait("attempt 1", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 1
		})
		c.WaitStep(id, 22, time.Minute)
		tape := c.Taped()
		c.Replay(tape)
		time.Sleep(5 * time.Second)
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if len(j.Attempts) != 2 || c.Hosts.Starts(id) != 8 {
			t.Errorf("%d attempts, %d ranks started", len(j.Attempts), c.Hosts.Starts(id))
		}
		c.books()
		before := c.facts()
		c.Replay(tape)
		time.Sleep(20 * time.Second)
		if after := c.facts(); after != before {
			t.Errorf("old messages changed the state:\n%s\n\nto\n%s", before, after)
		}
	})
}

// facts renders what matters of the state: everything but the index and old events.
func (c *Cluster) facts() string {
	synctest.Wait()
	v := c.View()
	var b strings.Builder
	for _, n := range v.Nodes() {
		fmt.Fprintf(&b, "node %s %s %s %s\n", n.ID, n.State, n.Info.Session, n.Info.BootID)
	}
	for _, j := range v.Jobs() {
		fmt.Fprintf(&b, "job %s %s %d attempts %+v\n", j.ID, j.State, len(j.Attempts), j.Ledger)
	}
	for _, r := range v.Runs() {
		fmt.Fprintf(&b, "run %+v\n", *r)
	}
	for _, ck := range v.Checkpoints("") {
		fmt.Fprintf(&b, "checkpoint %s %s\n", ck.ID, ck.State)
	}
	fmt.Fprintf(&b, "%d groups, %d holds, %d events\n", len(v.Groups()), len(v.Holds()), v.Meta().EventSeq)
	return b.String()
}

// TestOldRegistration: a registration that was long on its way must not undo what a
// newer one said, nor declare gone what runs (P2).
func TestOldRegistration(t *testing.T) {
	for _, later := range []string{"same session", "agent restarted", "rebooted"} {
		t.Run(later, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
				c.Tape()
				c.Node("n1").RestartAgent()
				c.Wait("it is registered", time.Minute, func(v *state.View) bool { return strings.Contains(c.tapedSubjects(), "register") })
				time.Sleep(time.Second)
				tape := c.Taped()
				before := c.View().Node("n1").Info.Session
				switch later {
				case "agent restarted":
					c.Node("n1").RestartAgent()
				case "rebooted":
					c.Node("n1").Kill()
					c.Node("n1").Boot()
				}
				c.Wait("the newest start of the agent is known", time.Minute, func(v *state.View) bool {
					n := v.Node("n1")
					return n.Info.BootID == c.Node("n1").boot() && (later == "same session" || n.Info.Session != before)
				})
				id := c.Submit(NewSpec("a", 2, Script{Steps: 300, StepTime: 100 * ms}))
				c.WaitStep(id, 5, time.Minute)
				c.Replay(tape)
				j := c.WaitState(id, 5*time.Minute, api.Succeeded)
				if len(j.Attempts) != 1 || c.Hosts.Starts(id) != 2 {
					t.Errorf("%d attempts, %d ranks started", len(j.Attempts), c.Hosts.Starts(id))
				}
				c.books()
			})
		})
	}
}

func (c *Cluster) tapedSubjects() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, m := range c.tape {
		b.WriteString(m.subject + " ")
	}
	return b.String()
}

// TestOldHeartbeatKeepsNobodyAlive: a dead node's heartbeats, told again and again,
// do not make it live.
func TestOldHeartbeatKeepsNobodyAlive(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		time.Sleep(5 * time.Second)
		c.Tape()
		time.Sleep(3 * time.Second)
		tape := c.Taped()
		c.Node("n1").Kill()
		for range 30 {
			c.Replay(tape)
			time.Sleep(time.Second)
		}
		if s := c.View().Node("n1").State; s != api.NodeLost {
			t.Errorf("the dead node is %s", s)
		}
	})
}

// TestUnknownSession: a heartbeat of a session that the head does not know asks for a
// new registration and changes nothing; garbage gets no answer and does no harm.
func TestUnknownSession(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		conn := c.Bus.Connect("stranger", bus.Permission{Publish: []string{"head.>"}, Inbox: wire.InboxPrefix("stranger")})
		defer conn.Close()
		before := c.facts()
		data, err := wire.Marshal(wire.Heartbeat{Session: "nobody", Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"n1", "never-seen"} {
			raw, err := conn.Request(c.ctx, wire.HeadHeartbeat+node, data)
			var ack wire.HeartbeatAck
			if err != nil || wire.Unmarshal(raw, &ack) != nil || !ack.Unknown || ack.Lease != 0 {
				t.Errorf("%s: %+v %v", node, ack, err)
			}
		}
		for _, subject := range []string{wire.HeadRegister, wire.HeadHeartbeat, wire.HeadReport, wire.HeadPrepared, wire.HeadFetch} {
			for _, junk := range [][]byte{nil, {0xdd, 0xff, 0xff, 0xff, 0xff}, []byte("}{"), make([]byte, 1<<20)} {
				_ = conn.Publish(subject+"n1", junk)
			}
		}
		time.Sleep(2 * time.Second)
		if after := c.facts(); after != before {
			t.Errorf("%s\n\n%s", before, after)
		}
	})
}

// TestOwnerGone: when the shim of the owner's host sees it end, the job ends, charged
// to nobody.
func TestOwnerGone(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms})
		spec.Owner = &api.Owner{BootID: c.Node("n1").boot(), PID: 4242, StartTime: 1}
		id := c.Submit(spec)
		c.WaitStep(id, 3, time.Minute)
		if !c.Node("n1").EndOwner(id) {
			t.Fatal("n1 has no shim of the job")
		}
		j := c.WaitState(id, time.Minute, api.Stopped)
		if j.Ledger.Failed != 0 || j.Reason == nil || j.Reason.Code != api.ReasonOwnerGone {
			t.Errorf("%+v %+v", j.Ledger, j.Reason)
		}
		c.books()
	})
}

// TestBudgetExact: `launch` counts every failure, whatever its class, exactly (I15).
func TestBudgetExact(t *testing.T) {
	for _, budget := range []int64{0, 1, 3} {
		Run(t, Options{Nodes: four()[:2], Seed: uint64(budget)}, func(c *Cluster) {
			spec := NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms, Dies: []Death{{Attempt: 1, Rank: 2, Step: 4, Code: 7}}})
			spec.Restart = api.RestartPolicy{MaxRestarts: &budget, NoBackoff: true}
			id := c.Submit(spec)
			for attempt := range budget + 1 {
				c.Wait(fmt.Sprintf("attempt %d", attempt), time.Minute, func(v *state.View) bool {
					j := v.Job(id)
					return j.Last() != nil && j.Last().Number == attempt && (j.State == api.Running || attempt == 1)
				})
				if attempt == 1 {
					continue // dies by itself
				}
				c.WaitStep(id, 2, time.Minute)
				for _, n := range c.nodes {
					n.KillRank(id, 1)
				}
			}
			j := c.WaitState(id, time.Minute, api.Failed)
			if int64(len(j.Attempts)) != budget+1 || j.Ledger.Failed != budget+1 {
				t.Errorf("budget %d: %d attempts, ledger %+v", budget, len(j.Attempts), j.Ledger)
			}
			c.books()
		})
	}
}

// TestStartFails: an attempt that cannot start is charged to the machine and tried
// again; a program that does not exist ends the job with the shell's exit code.
func TestStartFails(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 3, StepTime: 100 * ms, NoStart: 2}))
		j := c.WaitState(id, 5*time.Minute, api.Succeeded)
		if len(j.Attempts) != 3 || j.Ledger.Infra != 2 {
			t.Errorf("%d attempts, %+v", len(j.Attempts), j.Ledger)
		}
		c.Node("n1").FailShims(1)
		c.Node("n2").FailShims(1)
		b := c.Submit(NewSpec("b", 2, Script{Steps: 3, StepTime: 100 * ms}))
		c.WaitState(b, 5*time.Minute, api.Succeeded)
		spec := NewSpec("none", 2, Script{})
		spec.Command = []string{"no-such-program"}
		n := c.Submit(spec)
		if j := c.WaitState(n, 5*time.Minute, api.Failed); j.ExitCode == nil || *j.ExitCode != 127 {
			t.Errorf("exit code %v, %+v", j.ExitCode, j.Reason)
		}
		c.books()
	})
}

// TestSameFailureEndsEarly: the same traceback twice before the first step.
func TestSameFailureEndsEarly(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 2, Script{Steps: 10, StepTime: 100 * ms, Dies: []Death{{Attempt: -1, Rank: 0, Step: 1, Code: 1}}}))
		j := c.WaitState(id, 5*time.Minute, api.Failed)
		if len(j.Attempts) != 2 || j.Reason.Code != api.ReasonSameFailure {
			t.Errorf("%d attempts, %+v", len(j.Attempts), j.Reason)
		}
		c.books()
	})
}

// TestIdempotentSubmit: a repeated request makes one job; another one under the same
// key is refused (I16).
func TestIdempotentSubmit(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		key := headapi.Idempotency{Key: "k", Fingerprint: "f", FirstSent: time.Now()}
		spec := NewSpec("a", 1, Script{Steps: 3, StepTime: 100 * ms})
		first, err := c.TrySubmit(spec, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Head(0).Restart(time.Second)
		c.Wait("the head is back", time.Minute, func(*state.View) bool { return c.Leader() != nil })
		again, err := c.TrySubmit(spec, key)
		if err != nil || again != first {
			t.Errorf("%s and %s, %v", first, again, err)
		}
		key.Fingerprint = "other"
		if _, err := c.TrySubmit(spec, key); err == nil {
			t.Error("a reused key was accepted")
		}
		c.WaitState(first, time.Minute, api.Succeeded)
	})
}

func key(k string) headapi.Idempotency {
	if k == "" {
		return headapi.Idempotency{}
	}
	return headapi.Idempotency{Key: k, Fingerprint: "f"}
}
