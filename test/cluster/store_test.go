package cluster

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// foreign is the generation of a cluster that is long gone; its counter was far ahead.
const foreign = uint64(3)<<48 | 900

// leave puts a step of another life on a disk, as four ranks have saved it.
func leave(t testing.TB, d *disk.Mem, step int64, gen uint64, committed bool) string {
	t.Helper()
	n := checkpoint.StepName{Step: step, Generation: gen, Life: "ffffffff"}
	dir := checkpoint.StepDir(storeDir, "a", n)
	var reports []wire.Prepared
	for rank := range int64(4) {
		name := fmt.Sprintf("rank-%d/model.bin", rank)
		data := fmt.Sprintf("step %d rank %d of a\n", step, rank)
		put(t, d, path.Join(dir, name), data)
		reports = append(reports, wire.Prepared{
			Run: "a", Step: step, Generation: gen, World: 4, Rank: rank, Dir: dir,
			Files: []wire.PreparedFile{{Path: name, Length: int64(len(data)), Digest: checkpoint.DigestBytes([]byte(data)), Part: "model"}},
		})
	}
	if !committed {
		return dir
	}
	data, digest, err := checkpoint.Build(reports, nil)
	if err != nil {
		t.Fatal(err)
	}
	put(t, d, path.Join(dir, checkpoint.ManifestFile), string(data))
	mark, err := checkpoint.NewCommittedMark("gone", 7, digest)
	if err != nil {
		t.Fatal(err)
	}
	put(t, d, path.Join(dir, checkpoint.CommittedFile), string(mark))
	return dir
}

func put(t testing.TB, d *disk.Mem, name, text string) {
	t.Helper()
	if err := d.MkdirAll(path.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := d.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// TestAdoptsAtFirstStart: a cluster that knows nothing of a run goes on from what another
// one committed in its folder, with a higher generation, and from the newest step that is
// whole and stands (P3, P4).
func TestAdoptsAtFirstStart(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		leave(t, c.Disk, 5, foreign, true)
		want := leave(t, c.Disk, 10, foreign+1, true)
		back := leave(t, c.Disk, 15, foreign+1, true)
		mark, err := checkpoint.NewRolledBackMark("gone", 9, "--from-step")
		if err != nil {
			t.Fatal(err)
		}
		put(t, c.Disk, path.Join(back, checkpoint.RolledBackFile), string(mark))
		damaged := leave(t, c.Disk, 12, foreign+2, true)
		put(t, c.Disk, path.Join(damaged, "rank-2/model.bin"), "step 13 rank 2 of a\n")
		unfinished := leave(t, c.Disk, 20, foreign+3, false)

		id := c.Submit(saving(30))
		j := c.WaitState(id, time.Minute, api.Succeeded)
		first := j.Attempts[0]
		if first.Restore == nil || first.Restore.Dir != want || first.Generation <= foreign+3 {
			t.Errorf("attempt 0 has generation %d and restored %+v", first.Generation, first.Restore)
		}
		if len(j.Attempts) != 1 {
			t.Errorf("%d attempts", len(j.Attempts))
		}
		steps := committedSteps(c.View(), "a")
		for _, s := range []int64{5, 10, 15, 20, 25, 30} {
			if steps[s] == 0 {
				t.Errorf("step %d does not stand: %v", s, steps)
			}
		}
		if steps[12] != 0 {
			t.Error("a damaged step was adopted")
		}
		for _, dir := range []string{damaged, back, unfinished} {
			if _, err := c.Disk.Stat(path.Join(dir, "rank-0/model.bin")); err != nil {
				t.Errorf("another cluster's step was touched: %v", err)
			}
		}
		var adopted []string
		for _, e := range c.View().RecentEvents("run/a", 100) {
			if e.Type == "checkpoint-adopted" {
				adopted = append(adopted, e.Text)
			}
		}
		if len(adopted) != 2 || !strings.Contains(adopted[0], "step 10") || !strings.Contains(adopted[0], "every byte was verified") {
			t.Errorf("events: %q", adopted)
		}
		c.books()
	})
}

// TestAdoptionSurvivesLeader: what is adopted is restored as any step, after a leader's
// death as well.
func TestAdoptionSurvivesLeader(t *testing.T) {
	for _, point := range []string{"task:list", "task:list:done", "task:verify", "task:verify:done"} {
		t.Run(point, func(t *testing.T) {
			Run(t, Options{Heads: 3, Nodes: four()[:2]}, func(c *Cluster) {
				leave(t, c.Disk, 10, foreign, true)
				c.Trip(point, 1, func() { c.crashLeader(time.Second) })
				id, err := c.TrySubmit(saving(20), key("k"))
				if err != nil {
					c.Wait("a head leads", time.Minute, func(*state.View) bool { return c.Leader() != nil })
					if id, err = c.TrySubmit(saving(20), key("k")); err != nil {
						t.Fatal(err)
					}
				}
				j := c.WaitState(id, time.Minute, api.Succeeded)
				if !c.Tripped() {
					t.Fatal("the point was never passed")
				}
				if r := j.Attempts[0].Restore; r == nil || r.Step != 10 || len(j.Attempts) != 1 {
					t.Errorf("%d attempts, the first restored %+v", len(j.Attempts), r)
				}
				if g := c.View().NewestCommitted("a").Generation; g <= foreign {
					t.Errorf("step 20 was saved by generation %d", g)
				}
				c.books()
			})
		})
	}
}

// TestStoreNotShared: a job on several nodes that asks for checkpoints is refused by name
// of the nodes that do not see each other's files; one that does not ask runs; on one node
// any folder will do.
func TestStoreNotShared(t *testing.T) {
	Run(t, Options{Nodes: four()[:2], OwnDisks: true}, func(c *Cluster) {
		id := c.Submit(saving(10))
		j := c.WaitState(id, time.Minute, api.Failed)
		if j.Reason == nil || j.Reason.Code != api.ReasonStore || *j.ExitCode != api.ExitNever || len(j.Attempts) != 0 {
			t.Fatalf("reason %+v, %d attempts", j.Reason, len(j.Attempts))
		}
		for _, word := range []string{storeDir, "n1 does not see what n2 wrote", "n2 does not see what n1 wrote"} {
			if !strings.Contains(j.Reason.Text, word) {
				t.Errorf("%q does not say %q", j.Reason.Text, word)
			}
		}
		quiet := NewSpec("b", 4, Script{Steps: 10, StepTime: 100 * ms})
		j = c.WaitState(c.Submit(quiet), time.Minute, api.Succeeded)
		if j.Attempts[0].NoSaves == "" {
			t.Error("a job that does not ask for checkpoints was not told that none can be saved")
		}
		alone := NewSpec("c", 2, Script{Steps: 10, StepTime: 100 * ms})
		alone.Checkpoint.Interval = "5steps"
		alone.Strategy = api.StrictPack
		j = c.WaitState(c.Submit(alone), time.Minute, api.Succeeded)
		if j.Attempts[0].NoSaves != "" || committedSteps(c.View(), "c")[10] == 0 {
			t.Errorf("on one node: %q, %v", j.Attempts[0].NoSaves, committedSteps(c.View(), "c"))
		}
		for _, n := range c.nodes {
			list, err := n.own.ReadDir(storeDir)
			if err != nil || slices.ContainsFunc(list, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".troupe-probe-") }) {
				t.Errorf("%s: proofs are left: %v, %v", n.ID, list, err)
			}
		}
		c.books()
	})
}

// TestPinsAndRemoval: a pinned step outlives retention and removal; the newest of a live
// job and what it restores from are refused; what is removed is gone from the disk.
func TestPinsAndRemoval(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := saving(60)
		spec.Checkpoint.KeepLast = 2
		id := c.Submit(spec)
		c.WaitStep(id, 7, time.Minute)
		head := c.Leader().running().control
		ctx := context.Background()
		if _, err := head.PinCheckpoint(ctx, "a", 5, 0, true); err != nil {
			t.Fatal(err)
		}
		c.Node("n1").KillRank(id, 0)
		v := c.Wait("attempt 1 runs", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.Last() != nil && j.Last().Number == 1 && j.State == api.Running && j.Last().Restore != nil
		})
		restored := v.Job(id).Last().Restore.Step
		c.Wait("five more steps are kept or gone", time.Minute, func(v *state.View) bool {
			n := v.NewestCommitted("a")
			return n != nil && n.Step >= restored+25
		})
		c.Wait("retention is done", time.Minute, func(v *state.View) bool { return len(committedSteps(v, "a")) <= 4 && len(v.OpenCheckpoints()) == 0 })
		steps := committedSteps(c.View(), "a")
		if steps[5] == 0 || steps[restored] == 0 {
			t.Errorf("%v stand; step 5 is pinned and step %d is being restored from", steps, restored)
		}
		newest := c.View().NewestCommitted("a").Step
		for step, why := range map[int64]string{5: "pinned", restored: "restores from", newest: "newest"} {
			if step == 5 && restored == 5 {
				continue
			}
			if _, err := head.RemoveCheckpoint(ctx, "a", step, 0); err == nil || !strings.Contains(err.Error(), why) && !strings.Contains(err.Error(), "pinned") && !strings.Contains(err.Error(), "newest") {
				t.Errorf("removal of step %d: %v, want %q", step, err, why)
			}
		}
		if _, err := head.PinCheckpoint(ctx, "a", 5, 0, false); err != nil {
			t.Fatal(err)
		}
		c.WaitState(id, time.Minute, api.Succeeded)
		ck := c.View().NewestCommitted("a")
		if out, err := head.RemoveCheckpoint(ctx, "a", ck.Step, 0); err != nil || out.State != "removed" {
			t.Errorf("the newest of a run without a live job: %+v, %v", out, err)
		}
		if _, err := c.Disk.Stat(ck.Dir); err == nil {
			t.Error("its files are still there")
		}
		c.books()
	})
}
