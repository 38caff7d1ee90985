package state

import "github.com/troupe-runtime/troupe/runtime/api"

// injectFault writes the event of a fault that is injected on request. Only a job that
// runs can be harmed.
func injectFault(t *tx, c InjectFault) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State != api.Running:
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+", not RUNNING")
	}
	t.event("fault-injected", "job/"+j.ID, "on request: %s", c.Fault)
	return nil
}
