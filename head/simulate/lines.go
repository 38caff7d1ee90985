package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// line is one job of a trace of JSON lines: when it is submitted, how long it takes, and
// everything that a job file may say.
type line struct {
	Submit   span `json:"submit"`
	Duration span `json:"duration"`
	// DeadlineAfter is when it is to have ended, after its submission.
	DeadlineAfter span `json:"deadlineAfter"`
	// Ranks stands before that of the spec, to tell a 0 from nothing.
	Ranks *int64 `json:"ranks"`
	api.JobSpec
}

// span is a time in seconds, or a duration with units.
type span struct {
	d     time.Duration
	given bool
}

// UnmarshalJSON reads a number of seconds or a string like 1h30m.
func (s *span) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(data) > 0 && data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	d, why := seconds(text)
	if why != "" {
		return errors.New(text + " " + why + "; give seconds, as 90, or a duration, as \"1h30m\"")
	}
	s.d, s.given = d, true
	return nil
}

// lines reads one JSON object from each line.
func (r *reader) lines(data []byte) {
	r.trace.Format = "troupe lines"
	n := 0
	for text := range bytes.Lines(data) {
		n++
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if len(r.trace.Jobs) >= MaxJobs {
			r.problem(n, 0, "more than %d jobs; cut the trace into parts", MaxJobs)
			return
		}
		before := r.bad
		r.object(n, text)
		if r.options.SkipBad && r.bad.All > before.All {
			r.skipped++
			r.bad = before
		}
	}
}

func (r *reader) object(n int, text []byte) {
	var l line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		column := int(d.InputOffset()) + 1
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			column = int(syntax.Offset)
		case errors.As(err, &kind):
			column = int(kind.Offset)
		}
		r.problem(n, column, "%v", err)
		return
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		r.problem(n, int(d.InputOffset())+1, "more than one object: write each job on a line of its own")
		return
	}
	if l.Ranks != nil {
		l.JobSpec.Ranks = *l.Ranks
	}
	switch {
	case l.Ranks != nil && *l.Ranks == 0:
		r.problem(n, 0, "ranks cannot be 0: leave it out for the default, 1")
		return
	case !l.Submit.given:
		r.problem(n, 0, `"submit" is missing: when is the job submitted, in seconds?`)
		return
	case !l.Duration.given:
		r.problem(n, 0, `"duration" is missing: how long does the job run, in seconds?`)
		return
	case !l.Deadline.IsZero():
		r.problem(n, 0, `"deadline" is a date; a trace says "deadlineAfter", which counts from the submission`)
		return
	case l.JobSpec.Ranks < 0 || l.Resources.GPUs < 0 || l.Resources.Share < 0:
		r.problem(n, 0, "a job cannot ask for less than nothing")
		return
	case l.Hosts != nil || l.Actor != nil || l.PlacementGroup != "" || l.SpareNodes != 0:
		r.problem(n, 0, "hosts, actor, placementGroup and spareNodes are not simulated; leave them out")
		return
	}
	j := Job{Line: n, Name: l.Name, Submit: l.Submit.d, Takes: l.Duration.d, Spec: l.JobSpec}
	if l.DeadlineAfter.given {
		j.Deadline = j.Submit + l.DeadlineAfter.d
	}
	r.add(j, 0)
}
