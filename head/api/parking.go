package api

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// sortableNumber is a number whose text sorts as it does.
func sortableNumber(n int) string { return fmt.Sprintf("%08d", n) }

// parking are the verbs that keep a job from running or let it again, and those that make
// another of it.
func (s *server) parking() {
	for _, x := range []struct {
		verb, text string
		do         func(r *request, id, reason string, deadline time.Duration) (api.Job, error)
	}{
		{"hold", "Keep a waiting job from starting", func(r *request, id, reason string, _ time.Duration) (api.Job, error) {
			return s.b.HoldJob(r, id, reason)
		}},
		{"release", "Let a held job wait again", func(r *request, id, reason string, _ time.Duration) (api.Job, error) {
			return s.b.ReleaseJob(r, id, reason)
		}},
		{"suspend", "Let a job save and give back what it holds, until it is resumed; answers at once", func(r *request, id, reason string, d time.Duration) (api.Job, error) {
			return s.b.SuspendJob(r, id, d, reason)
		}},
		{"resume", "Let a suspended job wait again, with its seniority", func(r *request, id, reason string, _ time.Duration) (api.Job, error) {
			return s.b.ResumeJob(r, id, reason)
		}},
	} {
		register(s, op(http.MethodPost, "/api/v1/jobs/{id}/"+x.verb, x.verb+"-job", x.text),
			func(o *huma.Operation) { takes[api.ParkRequest](s, o, false) },
			func(r *request, in *struct {
				IDParam
				rawBody
			},
			) (*bodyOutput[api.Job], error) {
				var body api.ParkRequest
				if len(in.RawBody) > 0 {
					if err := decode(in.RawBody, &body); err != nil {
						return nil, err
					}
				}
				c := checks{}
				c.text("/reason", body.Reason, maxReason)
				deadline := c.deadline("/deadline", body.Deadline)
				if body.Deadline != nil && x.verb != "suspend" {
					c.add("/deadline", "is for a suspension")
				}
				if err := c.err(); err != nil {
					return nil, err
				}
				job, err := x.do(r, in.ID, body.Reason, deadline)
				if err != nil {
					return nil, err
				}
				return &bodyOutput[api.Job]{job.Index, job}, nil
			})
	}
	again := op(http.MethodPost, "/api/v1/jobs/{id}/requeue", "requeue-job", "Submit a job that has ended once more, as a new job of the same run")
	again.DefaultStatus = http.StatusCreated
	register(s, again, nil, func(r *request, in *struct {
		IDParam
		KeyHeaders
	},
	) (*createdOutput[api.Job], error) {
		key, err := s.idempotency(in.KeyHeaders, "requeue", in.ID)
		if err != nil {
			return nil, err
		}
		made, err := s.b.Requeue(r, in.ID, key)
		if err != nil {
			return nil, err
		}
		job, err := s.b.Job(r, made.ID)
		if err != nil {
			return nil, err
		}
		return &createdOutput[api.Job]{Status: http.StatusCreated, Location: "/api/v1/jobs/" + url.PathEscape(job.ID), Index: made.Index, Body: job}, nil
	})
	register(s, op(http.MethodPatch, "/api/v1/jobs/{id}", "edit-job", "Change queue, priority and limits of a waiting job"),
		func(o *huma.Operation) { takes[api.EditRequest](s, o, true) },
		func(r *request, in *struct {
			IDParam
			rawBody
		},
		) (*bodyOutput[api.Job], error) {
			var body api.EditRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			if err := new(checks).edit(body); err != nil {
				return nil, err
			}
			job, err := s.b.EditJob(r, in.ID, body)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Job]{job.Index, job}, nil
		})
}

func (c *checks) edit(e api.EditRequest) error {
	if e.Priority != nil && (*e.Priority > 1_000_000 || *e.Priority < -1_000_000) {
		c.add("/priority", "is %d; within ±1000000", *e.Priority)
	}
	c.deadline("/timeLimit", e.TimeLimit)
	c.deadline("/estimate", e.Estimate)
	c.deadline("/maxWait", e.MaxWait)
	if e.TimeLimit != nil && e.Estimate != nil && *e.TimeLimit > 0 && *e.Estimate > *e.TimeLimit {
		c.add("/estimate", "is %s, more than the time limit of %s", e.Estimate, e.TimeLimit)
	}
	return c.err()
}
