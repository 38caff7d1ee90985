package cluster

import (
	"context"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func saving(steps int64) api.JobSpec {
	spec := NewSpec("a", 4, Script{Steps: steps, StepTime: 100 * ms})
	spec.Checkpoint.Interval = "5steps"
	spec.Checkpoint.KeepLast = 100
	return spec
}

// committedSteps lists the steps of a run that stand.
func committedSteps(v *state.View, run string) map[int64]uint64 {
	out := map[int64]uint64{}
	for _, ck := range v.Checkpoints(run) {
		if ck.State == state.CheckpointCommitted {
			out[ck.Step] = ck.Generation
		}
	}
	return out
}

// TestCommitSurvivesLeader: a head that ends at any point of the commit protocol
// loses no step, commits none twice, and leaves no mark unwritten (P4, I19).
func TestCommitSurvivesLeader(t *testing.T) {
	for _, heads := range []int{1, 3} {
		for _, point := range []string{
			"prepared", "task:write-manifest", "task:write-manifest:done", "commit", "verdict",
			"task:write-committed", "task:write-committed:done", "done",
		} {
			for _, nth := range []int{1, 3} {
				if heads == 3 && nth > 1 {
					continue
				}
				t.Run(point, func(t *testing.T) {
					Run(t, Options{Heads: heads, Nodes: four()[:2]}, func(c *Cluster) {
						id := c.Submit(saving(40))
						c.WaitState(id, time.Minute, api.Running)
						c.Trip(point, nth, func() { c.crashLeader(time.Second) })
						j := c.WaitState(id, time.Minute, api.Succeeded)
						if !c.Tripped() {
							t.Fatal("the point was never passed")
						}
						if len(j.Attempts) != 1 || c.Hosts.Starts(id) != 4 {
							t.Errorf("%d attempts, %d ranks started", len(j.Attempts), c.Hosts.Starts(id))
						}
						v := c.Wait("every mark is written", time.Minute, func(v *state.View) bool { return len(v.OpenCheckpoints()) == 0 })
						steps := committedSteps(v, "a")
						for step := int64(5); step <= 40; step += 5 {
							if steps[step] == 0 {
								t.Errorf("step %d is not committed: %v", step, steps)
							}
						}
						for _, ck := range v.Checkpoints("a") {
							if _, err := c.Disk.Stat(path.Join(ck.Dir, checkpoint.CommittedFile)); err != nil {
								t.Errorf("step %d: %v", ck.Step, err)
							}
						}
						c.books()
					})
				})
			}
		}
	}
}

// TestLeaderLostAnywhere: a head that ends at any other point of a job's life costs
// no rank and no attempt.
func TestLeaderLostAnywhere(t *testing.T) {
	for _, point := range []string{"submit", "supervise", "facts", "desired", "report", "heartbeat"} {
		for nth := 1; nth <= 4; nth++ {
			t.Run(point, func(t *testing.T) {
				Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
					c.Trip(point, nth, func() { c.crashLeader(time.Second) })
					id, err := c.TrySubmit(NewSpec("a", 4, Script{Steps: 30, StepTime: 100 * ms, Start: 20 * ms}), key("k"))
					if err != nil {
						c.Wait("a head leads", time.Minute, func(*state.View) bool { return c.Leader() != nil })
						if id, err = c.TrySubmit(NewSpec("a", 4, Script{Steps: 30, StepTime: 100 * ms}), key("k")); err != nil {
							t.Fatal(err)
						}
					}
					j := c.WaitState(id, time.Minute, api.Succeeded)
					if len(j.Attempts) != 1 || c.Hosts.Starts(id) != 4 || len(c.View().Jobs()) != 1 {
						t.Errorf("passing %d: %d attempts, %d ranks started, %d jobs", nth, len(j.Attempts), c.Hosts.Starts(id), len(c.View().Jobs()))
					}
					c.books()
				})
			})
		}
	}
}

// TestAgentLostAtTask: work on a store that an agent took with it to its death is asked
// for again as soon as its successor registers. Until the task's time-out the ranks would
// wait for the verdict.
func TestAgentLostAtTask(t *testing.T) {
	for _, point := range []string{
		"task:write-manifest", "task:write-manifest:done", "task:write-committed", "task:write-committed:done", "task:delete",
	} {
		t.Run(point, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
				spec := saving(60)
				spec.Checkpoint.KeepLast = 1
				id := c.Submit(spec)
				c.WaitState(id, time.Minute, api.Running)
				var hit atomic.Pointer[Node]
				c.Trip(point, 2, func() {
					// Tasks of a run go to the node of its first rank.
					n := c.Node(c.View().Job(id).Last().Ranks[0].Node)
					c.Bus.Cut(n.identity(), "*")
					hit.Store(n)
				})
				c.Wait("the point is passed", time.Minute, func(*state.View) bool { return hit.Load() != nil })
				n, was := hit.Load(), c.View().NewestCommitted("a")
				n.KillAgent()
				c.Bus.Heal(n.identity(), "*")
				n.StartAgent()
				c.Wait("later steps are committed", 2*time.Second, func(v *state.View) bool {
					ck := v.NewestCommitted("a")
					return ck != nil && ck.Step >= was.Step+10
				})
				j := c.WaitState(id, time.Minute, api.Succeeded)
				if len(j.Attempts) != 1 {
					t.Errorf("%d attempts", len(j.Attempts))
				}
			})
		})
	}
}

// TestLateQuestionAboutACommit: whoever asks about a step once more after its job has
// ended is never told that what was committed was dropped, deleted since or not (P4).
func TestLateQuestionAboutACommit(t *testing.T) {
	for _, keep := range []int64{100, 1} {
		Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
			spec := saving(20)
			spec.Checkpoint.KeepLast = keep
			c.Tape()
			id := c.Submit(spec)
			c.WaitState(id, time.Minute, api.Succeeded)
			tape := c.Taped()
			gen := c.View().Job(id).Last().Generation
			c.Wait("the allocations are forgotten", time.Minute, func(v *state.View) bool {
				return len(v.AllocsOn("n1"))+len(v.AllocsOn("n2")) == 0
			})
			conn := c.Bus.Connect("late", bus.Permission{Publish: []string{"head.>"}, Inbox: wire.InboxPrefix("late")})
			defer conn.Close()
			asked := 0
			for _, m := range tape {
				var p wire.Prepared
				if !strings.HasPrefix(m.subject, wire.HeadPrepared) || wire.Unmarshal(m.data, &p) != nil || !c.History.committed("a", gen, p.Step) {
					continue
				}
				asked++
				ctx, cancel := context.WithTimeout(c.ctx, time.Second)
				raw, err := conn.Request(ctx, m.subject, m.data)
				cancel()
				var v wire.Verdict
				if err == nil && (wire.Unmarshal(raw, &v) != nil || v.State != checkpoint.VerdictCommitted) || err != nil && keep == 100 {
					t.Errorf("keep %d: rank %d asks about step %d: %+v, %v", keep, p.Rank, p.Step, v, err)
				}
			}
			if asked < 12 {
				t.Errorf("keep %d: only %d questions", keep, asked)
			}
		})
	}
}

// TestOldGenerationPrepares: what an older generation has prepared is dropped, also
// when all its ranks say so together after the new one has begun (P3, P4).
func TestOldGenerationPrepares(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(saving(200))
		c.WaitStep(id, 7, time.Minute)
		c.Tape()
		c.WaitStep(id, 11, time.Minute)
		tape := c.Taped()
		first := c.View().Job(id).Last().Generation
		c.Node("n1").KillRank(id, 0)
		c.Node("n2").KillRank(id, 0)
		c.Wait("attempt 1", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 1
		})
		conn := c.Bus.Connect("late", bus.Permission{Publish: []string{"head.>"}, Inbox: wire.InboxPrefix("late")})
		defer conn.Close()
		told := 0
		for _, m := range tape {
			if !strings.HasPrefix(m.subject, wire.HeadPrepared) {
				continue
			}
			var p wire.Prepared
			if err := wire.Unmarshal(m.data, &p); err != nil {
				t.Fatal(err)
			}
			// The same ranks, and the step that the new generation is about to save.
			p.Step = 15
			p.Dir = checkpoint.StepDir(storeDir, "a", checkpoint.StepName{Step: 15, Generation: first, Life: "0badcafe"})
			data, err := wire.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := conn.Request(c.ctx, m.subject, data)
			var v wire.Verdict
			if err != nil || wire.Unmarshal(raw, &v) != nil || v.State != checkpoint.VerdictDropped {
				t.Errorf("rank %d of generation %d: %+v, %v", p.Rank, p.Generation, v, err)
			}
			told++
		}
		if told < 4 {
			t.Fatalf("only %d reports were told", told)
		}
		c.WaitStep(id, 31, time.Minute)
		if g, want := committedSteps(c.View(), "a")[15], c.View().Job(id).Last().Generation; g != want {
			t.Errorf("step 15 is committed by generation %d, not by %d", g, want)
		}
	})
}

// TestDamagedRestore: a step whose file was altered is rolled back with an event, the
// one before is restored, and nobody is charged (P4, I22).
func TestDamagedRestore(t *testing.T) {
	for _, how := range []string{"altered", "cut", "missing", "manifest"} {
		t.Run(how, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
				id := c.Submit(saving(60))
				c.WaitStep(id, 17, time.Minute)
				newest := c.View().NewestCommitted("a")
				if newest.Step != 15 {
					t.Fatalf("the newest step is %d", newest.Step)
				}
				file := path.Join(newest.Dir, "rank-3", "model.bin")
				switch how {
				case "altered":
					c.write(file, "stepX15 rank 3 of a\n")
				case "cut":
					c.write(file, "step")
				case "missing":
					if err := c.Disk.Remove(file); err != nil {
						t.Fatal(err)
					}
				case "manifest":
					c.write(path.Join(newest.Dir, checkpoint.ManifestFile), "{}")
				}
				c.Node("n1").KillRank(id, 0)
				c.Node("n2").KillRank(id, 0)
				j := c.WaitState(id, 2*time.Minute, api.Succeeded)
				if j.Ledger.Failed != 1 {
					t.Errorf("ledger %+v", j.Ledger)
				}
				last := j.Last()
				if last.Restore == nil || last.Restore.Step != 10 {
					t.Errorf("the last of %d attempts restored %+v", len(j.Attempts), last.Restore)
				}
				if ck := c.View().Checkpoint(newest.ID); ck.State != state.CheckpointRolledBack || ck.Reason == "" || !ck.Damaged {
					t.Errorf("step 15 of the first generation is %s: %q", ck.State, ck.Reason)
				}
				if g := committedSteps(c.View(), "a")[15]; g != last.Generation {
					t.Errorf("step 15 was saved again by generation %d, the last is %d", g, last.Generation)
				}
				c.books()
			})
		})
	}
}

func (c *Cluster) write(file, text string) {
	c.T.Helper()
	f, err := c.Disk.OpenFile(file, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o644)
	if err != nil {
		c.T.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte(text)); err != nil {
		c.T.Fatal(err)
	}
}

// TestRequeuedRunResumes: a new job of the same run goes on from the run's newest step.
func TestRequeuedRunResumes(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		first := c.Submit(saving(100))
		c.WaitStep(first, 12, time.Minute)
		if _, err := c.TrySubmit(saving(100), key("")); err == nil {
			t.Error("a run has two live jobs")
		}
		if _, err := c.Stop(first, ms, time.Minute); err != nil {
			t.Fatal(err)
		}
		second := c.Submit(saving(30))
		j := c.WaitState(second, time.Minute, api.Succeeded)
		if r := j.Attempts[0].Restore; r == nil || r.Step != 10 {
			t.Errorf("restored %+v", r)
		}
		spec := saving(30)
		from := int64(5)
		spec.Checkpoint.FromStep = &from
		third := c.Submit(spec)
		j = c.WaitState(third, time.Minute, api.Succeeded)
		if r := j.Attempts[0].Restore; r == nil || r.Step != 5 {
			t.Errorf("restored %+v with --from-step 5", r)
		}
		c.books()
	})
}
