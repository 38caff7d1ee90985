package state

import "fmt"

// DropStep records that a step which ranks have saved is not committed, and why (P7).
// Nothing else changes: what they wrote is garbage.
type DropStep struct {
	Run        string `json:"run"`
	Generation uint64 `json:"gen"`
	Step       int64  `json:"step"`
	Reason     string `json:"reason"`
}

func dropStep(t *tx, c DropStep) any {
	r := t.Run(c.Run)
	if r == nil {
		return refuse("not-found", "no run "+c.Run)
	}
	if c.Generation != r.Generation {
		return refuse("stale", fmt.Sprintf("step %d of run %s comes from generation %d; the current one is %d", c.Step, c.Run, c.Generation, r.Generation))
	}
	j := t.Job(r.Job)
	if j == nil || j.State.Terminal() {
		return refuse("stale", "run "+c.Run+" has no live job")
	}
	if old := t.Checkpoint(CheckpointID(c.Run, c.Generation, c.Step)); old != nil {
		return refuse("exists", fmt.Sprintf("step %d of run %s is %s", c.Step, c.Run, old.State))
	}
	t.event("checkpoint-dropped", "job/"+j.ID, "step %d of run %s, generation %d: %s", c.Step, c.Run, c.Generation, c.Reason)
	return nil
}
