package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// PinCheckpoint keeps a step from retention and removal, or lets it go again.
type PinCheckpoint struct {
	ID     string `json:"id"`
	Pinned bool   `json:"pinned"`
}

// AdoptCheckpoints takes committed steps into the records of a run that another life of
// the cluster, or another cluster, has committed. The generation counter was raised above
// every one of theirs before (P3).
type AdoptCheckpoints struct {
	Run   string    `json:"run"`
	Store string    `json:"store"`
	Steps []Adopted `json:"steps"`
}

// Adopted is one such step.
type Adopted struct {
	Step       int64         `json:"step"`
	Generation uint64        `json:"gen"`
	Dir        string        `json:"dir"`
	Digest     string        `json:"digest"`
	Cluster    string        `json:"cluster"` // that committed it
	World      int64         `json:"world"`
	Bytes      int64         `json:"bytes"`
	Files      int64         `json:"files"`
	Parent     *int64        `json:"parent,omitempty"`
	ParentGen  uint64        `json:"parentGen,omitempty"`
	Metrics    []wire.Metric `json:"metrics,omitempty"`
	Verified   bool          `json:"verified,omitempty"` // read whole before
}

func pinCheckpoint(t *tx, c PinCheckpoint) any {
	ck := t.Checkpoint(c.ID)
	switch {
	case ck == nil:
		return refuse("not-found", "no checkpoint "+c.ID)
	case ck.State == CheckpointDeleting:
		return refuse("conflict", fmt.Sprintf("step %d of run %s is being deleted", ck.Step, ck.Run))
	case ck.Pinned == c.Pinned:
		return nil
	}
	w := *ck
	w.Pinned = c.Pinned
	t.put(tCheckpoint, &w)
	word := "pinned"
	if !c.Pinned {
		word = "unpinned"
	}
	t.event("checkpoint-"+word, "run/"+ck.Run, "step %d, generation %d", ck.Step, ck.Generation)
	return nil
}

// adoptCheckpoints is refused while a step is newer than the counter: an attempt could
// then get a generation that is in use already.
func adoptCheckpoints(t *tx, c AdoptCheckpoints) any {
	if c.Run == "" || len(c.Steps) == 0 {
		return refuse("invalid", "nothing to adopt")
	}
	newest := t.meta.Epoch<<48 | t.meta.Counter
	for _, s := range c.Steps {
		if s.Generation > newest {
			return refuse("stale", fmt.Sprintf("generation %d of step %d is above the counter, %d; raise it first", s.Generation, s.Step, newest))
		}
	}
	if r := t.Run(c.Run); r == nil {
		t.put(tRun, &Run{Name: c.Run, Tenant: "default", Store: c.Store, Fast: true})
	} else if !r.Fast {
		w := *r
		w.Fast = true
		t.put(tRun, &w)
	}
	n := 0
	for _, s := range c.Steps {
		id := CheckpointID(c.Run, s.Generation, s.Step)
		if t.Checkpoint(id) != nil {
			continue // known, or of a third life with the same numbers: the first stands
		}
		t.put(tCheckpoint, &Checkpoint{
			ID: id, Run: c.Run, Step: s.Step, Generation: s.Generation, World: s.World, Store: c.Store, Dir: s.Dir,
			Digest: s.Digest, Bytes: s.Bytes, Files: s.Files, Parent: s.Parent, ParentGeneration: s.ParentGen,
			State: CheckpointCommitted, Committed: t.now, Index: t.index, Marked: true, Metrics: s.Metrics, Adopted: s.Cluster,
		})
		word := "its marks and manifest hold"
		if s.Verified {
			word = "every byte was verified"
		}
		t.event("checkpoint-adopted", "run/"+c.Run, "step %d, generation %d of cluster %s: %s", s.Step, s.Generation, s.Cluster, word)
		n++
	}
	if n == 0 {
		return refuse("exists", "every step is in the records of run "+c.Run+" already")
	}
	return nil
}
