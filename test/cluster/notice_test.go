package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// moved: the job runs elsewhere from the step that its ranks agreed on, uncharged, and
// every step was made once.
func (c *Cluster) moved(id, node string) {
	c.T.Helper()
	v := c.Wait("the next attempt runs", time.Minute, func(v *state.View) bool {
		j := v.Job(id)
		return j != nil && len(j.Attempts) == 2 && j.State == api.Running
	})
	j := v.Job(id)
	next := j.Last()
	if usesNode(next, node) || next.Restore == nil || next.Restore.Step != j.Proposal.Target {
		c.T.Errorf("attempt 1 on %v restores %+v, agreed was step %d", next.Ranks, next.Restore, j.Proposal.Target)
	}
	if l := j.Ledger; l.Failed != 0 || j.Attempts[0].Cause != api.CauseNone {
		c.T.Errorf("charged: %+v, %s", l, j.Attempts[0].Cause)
	}
	if j.Attempts[0].Pace.Newest > next.Restore.Step {
		c.T.Errorf("step %d was made, step %d is restored", j.Attempts[0].Pace.Newest, next.Restore.Step)
	}
}

func (c *Cluster) noticed(node string) *state.Notice {
	c.T.Helper()
	v := c.Wait("the notice is in the log", time.Minute, func(v *state.View) bool {
		n := v.Node(node)
		return n != nil && n.Notice != nil
	})
	return v.Node(node).Notice
}

func (c *Cluster) counted(object, kind string) (n int) {
	for _, e := range c.View().RecentEvents(object, 1000) {
		if e.Type == kind {
			n++
		}
	}
	return n
}

// TestNotice: a node that hears of its end drains: the ranks agree on a step, save it and
// end, and the job runs elsewhere long before the deadline. By file and by signal.
func TestNotice(t *testing.T) {
	for _, how := range []string{"file", "signal"} {
		t.Run(how, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
				id := c.Submit(training(4, 200))
				c.WaitStep(id, 20, time.Minute)
				node := c.View().Job(id).Last().Ranks[0].Node
				start, left := time.Now(), 45*time.Second
				if how == "file" {
					c.Node(node).Notice("45s\n")
				} else {
					left = 2 * time.Minute
					c.Node(node).SignalNotice()
				}
				s := c.noticed(node)
				if d := time.Unix(0, s.Deadline).Sub(start); d < left || d > left+2*time.Second {
					t.Errorf("the deadline is in %s, %s are left", d, left)
				}
				if !strings.HasPrefix(s.Reason, "spot notice on "+node+": "+how) {
					t.Errorf("reason %q", s.Reason)
				}
				n := c.nodeOf(node)
				if n.Cordon.Notice == nil || n.Cordon.Reason != s.Reason || !n.Cordon.Drain {
					t.Errorf("node: %+v", n.Cordon)
				}
				if w, err := c.control().Why(c.ctx, "node/"+node); err != nil || !strings.Contains(w.Answer, s.Reason) {
					t.Errorf("why: %+v, %v", w, err)
				}
				c.waitDrained(node, time.Minute)
				c.moved(id, node)
				if k := c.counted("node/"+node, "node-draining"); k != 1 {
					t.Errorf("%d events of one notice", k)
				}
				c.WaitState(id, 2*time.Minute, api.Succeeded)
				c.books()
			})
		})
	}
}

// TestNoticeDeadline: what has not left by the deadline is ended then and not before, also
// where somebody had drained the node, or stopped the job, without a deadline.
func TestNoticeDeadline(t *testing.T) {
	for _, before := range []string{"", "drain", "stop"} {
		t.Run("after "+before, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
				// The ranks agree on a step that they do not reach in time: each takes a minute.
				id := c.Submit(NewSpec("slow", 2, Script{Steps: 60, StepTime: time.Minute}))
				c.WaitStep(id, 3, 10*time.Minute)
				node := c.View().Job(id).Last().Ranks[0].Node
				switch before {
				case "drain":
					c.drain(node, 0)
				case "stop":
					c.spawn(func() {
						ctx, cancel := context.WithTimeout(c.ctx, 10*time.Minute)
						defer cancel()
						_, _ = c.control().StopSaved(ctx, id, 0, "enough")
					})
				}
				if before != "" {
					c.Wait("it is being drained", time.Minute, func(v *state.View) bool { return v.Job(id).Drain != nil })
				}
				c.Node(node).Notice("100s")
				deadline := time.Unix(0, c.noticed(node).Deadline)
				var ordered *state.Event
				c.Wait("its end is ordered", 10*time.Minute, func(v *state.View) bool {
					for _, e := range v.RecentEvents("job/"+id, 1000) {
						if e.Type == "drain-ordered" {
							ordered = e
						}
					}
					return ordered != nil
				})
				if at := time.Unix(0, ordered.Time); at.Before(deadline) || at.After(deadline.Add(2*time.Second)) || !strings.Contains(ordered.Text, "the deadline has come") {
					t.Errorf("ended %s after the deadline: %s", at.Sub(deadline), ordered.Text)
				}
				c.waitDrained(node, time.Minute)
				if before == "stop" {
					c.WaitState(id, time.Minute, api.Stopped)
				} else if _, err := c.Stop(id, time.Second, time.Minute); err != nil {
					t.Fatal(err)
				}
				// Now it is too late to take it back.
				c.Node(node).Withdraw()
				c.Wait("it is said", time.Minute, func(*state.View) bool { return c.counted("node/"+node, "notice-late") == 1 })
				if !c.View().Node(node).Draining() {
					t.Error("a withdrawal after the deadline frees the node")
				}
				c.books()
			})
		})
	}
}

// TestNoticeWithdrawn: the end of the file undoes what it did and nothing else.
func TestNoticeWithdrawn(t *testing.T) {
	type world struct {
		name                string
		before, after       string // drained or cordoned by somebody, before the notice or after
		wantDrain, wantTake bool
	}
	for _, w := range []world{
		{name: "alone", wantTake: true},
		{name: "drained before", before: "drain", wantDrain: true},
		{name: "drained meanwhile", after: "drain", wantDrain: true},
		{name: "cordoned before", before: "cordon"},
		{name: "cordoned meanwhile", after: "cordon"},
	} {
		t.Run(w.name, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
				node := "n1"
				act := func(what string) {
					if what == "" {
						return
					}
					if _, err := c.control().DrainNode(c.ctx, node, what == "drain", 0, "new fan"); err != nil {
						t.Fatal(err)
					}
				}
				act(w.before)
				c.Node(node).Notice("10m")
				c.noticed(node)
				act(w.after)
				if n := c.View().Node(node); !n.Draining() || n.Schedulable() {
					t.Errorf("%+v", n)
				}
				c.Node(node).Withdraw()
				v := c.Wait("it is taken back", time.Minute, func(v *state.View) bool { return v.Node(node).Notice == nil })
				n := v.Node(node)
				if n.Draining() != w.wantDrain || n.Schedulable() != w.wantTake {
					t.Errorf("draining %v, takes work %v: %+v", n.Draining(), n.Schedulable(), n.Cordon)
				}
				if c.counted("node/"+node, "notice-withdrawn") != 1 {
					t.Error("nothing says so")
				}
			})
		})
	}
}

// TestNoticeWithdrawnUnderway: a job that was to leave and has not agreed yet stays, and one
// that leaves for another reason has no deadline any more.
func TestNoticeWithdrawnUnderway(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		id := c.Submit(NewSpec("slow", 2, Script{Steps: 60, StepTime: time.Minute}))
		c.WaitStep(id, 3, 10*time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.drain(node, 0)
		c.Wait("it is being drained", time.Minute, func(v *state.View) bool { return v.Job(id).Drain != nil })
		c.Node(node).Notice("100s")
		c.Wait("it has the notice's deadline", time.Minute, func(v *state.View) bool { return v.Job(id).Drain.Deadline != 0 })
		c.Node(node).Withdraw()
		v := c.Wait("it has none any more", time.Minute, func(v *state.View) bool { return v.Job(id).Drain.Deadline == 0 })
		if d := v.Job(id).Drain; d.Ordered != "" || d.Kind != state.DrainMove {
			t.Errorf("%+v", d)
		}
		if _, err := c.control().UncordonNode(c.ctx, node); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stop(id, time.Second, time.Minute); err != nil {
			t.Fatal(err)
		}
		c.books()
	})
}

// TestNoticeSurvives: whatever dies between the file and the move, the notice is neither
// lost nor given another deadline, and the job loses no step.
func TestNoticeSurvives(t *testing.T) {
	for _, heads := range []int{1, 3} {
		for _, point := range []string{"notice", "node-notice", "drain-job", "propose", "decide", "release"} {
			t.Run(fmt.Sprintf("the head, at %s of %d", point, heads), func(t *testing.T) {
				Run(t, Options{Heads: heads, Nodes: four()[:3]}, func(c *Cluster) {
					id := c.Submit(training(4, 150))
					c.WaitStep(id, 10, time.Minute)
					node := c.View().Job(id).Last().Ranks[0].Node
					start := time.Now()
					c.Trip(point, 1, func() { c.crashLeader(time.Second) })
					c.Node(node).Notice("2m")
					s := c.noticed(node)
					c.waitDrained(node, 3*time.Minute)
					if !c.Tripped() {
						t.Fatal("the point was never passed")
					}
					// Counted from when the file came, not from when a head took it.
					if d := time.Unix(0, s.Deadline).Sub(start); d < 2*time.Minute || d > 2*time.Minute+2*time.Second {
						t.Errorf("the deadline is in %s", d)
					}
					c.moved(id, node)
					c.WaitState(id, 3*time.Minute, api.Succeeded)
					c.books()
				})
			})
		}
	}
	for _, point := range []string{"notice", "node-notice", "propose"} {
		t.Run("the agent, at "+point, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
				id := c.Submit(training(4, 200))
				c.WaitStep(id, 10, time.Minute)
				node := c.View().Job(id).Last().Ranks[0].Node
				start := time.Now()
				c.Trip(point, 1, func() { c.spawn(c.Node(node).RestartAgent) })
				c.Node(node).Notice("2m")
				s := c.noticed(node)
				c.waitDrained(node, 3*time.Minute)
				if d := time.Unix(0, s.Deadline).Sub(start); !c.Tripped() || d < 2*time.Minute || d > 2*time.Minute+2*time.Second {
					t.Errorf("tripped %v, the deadline is in %s", c.Tripped(), d)
				}
				c.moved(id, node)
				if k := c.counted("node/"+node, "node-draining"); k != 1 {
					t.Errorf("%d events of one notice", k)
				}
				// The next agent knows what it must take back.
				c.Node(node).KillAgent()
				c.Node(node).Withdraw()
				c.Node(node).StartAgent()
				c.Wait("it is taken back", time.Minute, func(v *state.View) bool { return v.Node(node).Notice == nil })
				c.WaitState(id, 2*time.Minute, api.Succeeded)
				c.books()
			})
		})
	}
}

// TestNoticeRepeated: said again, a notice changes nothing; after somebody's word it does
// not drain the node anew; a file that says another time moves the deadline; and a machine
// that was taken away and is back takes work.
func TestNoticeRepeated(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		c.Tape()
		c.Node("n1").Notice("10m")
		first := c.noticed("n1")
		tape := c.Taped()
		said := 0
		for _, m := range tape {
			if strings.HasPrefix(m.subject, wire.HeadNotice) {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%d notices were said", said)
		}
		c.Node("n1").Notice("5m")
		v := c.Wait("the deadline is moved", time.Minute, func(v *state.View) bool { return v.Node("n1").Notice.Number != first.Number })
		if s := v.Node("n1").Notice; s.Deadline >= first.Deadline || s.Since != first.Since {
			t.Errorf("%+v, was %+v", s, first)
		}
		c.Node("n1").Notice("soon") // refused: what it said before counts
		c.Replay(tape)
		if _, err := c.control().UncordonNode(c.ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		c.Replay(tape)
		c.Node("n1").RestartAgent()
		c.Wait("ten seconds", time.Minute, func() func(*state.View) bool {
			until := time.Now().Add(10 * time.Second)
			return func(*state.View) bool { return time.Now().After(until) }
		}())
		if n := c.View().Node("n1"); !n.Schedulable() {
			t.Errorf("drained again: %+v", n.Notice)
		}
		// A signal is a new notice.
		c.Node("n1").SignalNotice()
		c.noticed("n1")
		c.Node("n1").Withdraw()
		c.Node("n1").Kill()
		c.Node("n1").Boot()
		c.Wait("it is back", time.Minute, func(v *state.View) bool { return v.Node("n1").Schedulable() })
	})
}

// TestNoticeOfAnother: a node speaks of itself alone, in the session and the boot that the
// head knows, and within the bounds.
func TestNoticeOfAnother(t *testing.T) {
	Run(t, Options{}, func(c *Cluster) {
		say := func(as, of string, m wire.Notice) (ack wire.NoticeAck, err error) {
			conn := c.Bus.Connect(nodeIdentity+as, bus.Permission{
				Publish: []string{wire.HeadNotice + as}, Subscribe: []string{"n." + as + ".>"}, Inbox: wire.InboxPrefix(nodeIdentity + as),
			})
			defer conn.Close()
			data, err := wire.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			defer cancel()
			raw, err := conn.Request(ctx, wire.HeadNotice+of, data)
			if err == nil {
				err = wire.Unmarshal(raw, &ack)
			}
			return ack, err
		}
		n := c.View().Node("n1")
		good := wire.Notice{Session: n.Info.Session, Boot: n.Info.BootID, Number: 7, Left: unit.Duration(time.Minute), Cause: "x"}
		if _, err := say("n2", "n1", good); err == nil {
			t.Error("n2 speaks for n1")
		}
		for what, change := range map[string]func(*wire.Notice){
			"session": func(m *wire.Notice) { m.Session = "other" },
			"boot":    func(m *wire.Notice) { m.Boot = "other" },
			"number":  func(m *wire.Notice) { m.Number = 0 },
			"left":    func(m *wire.Notice) { m.Left = 0 },
			"long":    func(m *wire.Notice) { m.Left = unit.Duration(25 * time.Hour) },
			"text":    func(m *wire.Notice) { m.Cause = strings.Repeat("x", wire.MaxNoticeText+1) },
		} {
			m := good
			change(&m)
			if ack, err := say("n1", "n1", m); err != nil || !ack.Unknown && ack.Error == "" {
				t.Errorf("%s: %+v, %v", what, ack, err)
			}
		}
		if n := c.View().Node("n1"); n.Notice != nil || c.View().Node("n2").Notice != nil {
			t.Errorf("%+v", n)
		}
		if ack, err := say("n1", "n1", good); err != nil || ack.Error != "" || ack.Unknown {
			t.Errorf("%+v, %v", ack, err)
		}
		c.noticed("n1")
	})
}
