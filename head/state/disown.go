package state

import "github.com/troupe-runtime/troupe/runtime/api"

// DisownJob takes a job's owner away: it goes on when the process that owned it ends.
type DisownJob struct {
	Job string `json:"job"`
}

// disownJob is refused once the owner has ended: then the job is being ended too, and
// whoever asked must not believe that it goes on.
func disownJob(t *tx, c DisownJob) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal():
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+", which is final")
	case j.OwnerGone, j.State == api.Stopping:
		return refuse("conflict", "job "+j.ID+" is being ended")
	case j.Spec.Owner == nil:
		return nil
	}
	w := *j
	w.Spec.Owner, w.Index = nil, t.index
	t.put(tJob, &w)
	t.event("job-disowned", "job/"+j.ID, "it goes on when the command that started it ends")
	return nil
}
