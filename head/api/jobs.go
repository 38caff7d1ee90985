package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

type IDParam struct {
	ID string `path:"id" maxLength:"512" doc:"The id, or a prefix of it that only one has."`
}

// BlockParams are the parameters of a blocking read.
type BlockParams struct {
	Wait     string `query:"wait" doc:"How long to wait for what minIndex or for asks, at most 30s."`
	MinIndex int64  `query:"minIndex" minimum:"0" doc:"Wait until the object's index is greater."`
	For      string `query:"for" doc:"Wait until the object is in this condition."`
}

type KeyHeaders struct {
	Key string `header:"Idempotency-Key" doc:"A key under which a repeat is recognised for 24 hours."`
	Age string `header:"Idempotency-Age" doc:"How long ago the request was first sent under this key, as 12s."`
}

type createdOutput[T any] struct {
	Status   int
	Location string `header:"Location"`
	Index    uint64 `header:"X-Troupe-Index"`
	Body     T
}

func (s *server) jobs() {
	register(s, op(http.MethodGet, "/api/v1/jobs", "list-jobs", "Jobs, the newest first"), nil,
		func(r *request, in *struct {
			PageParams
			State string `query:"state" doc:"Only these states, separated by commas."`
		},
		) (*listOutput[api.Job], error) {
			jobs, index, err := s.b.Jobs(r)
			if err != nil {
				return nil, err
			}
			jobs = hideEnv(r, jobs)
			if in.State != "" {
				states := strings.Split(strings.ToUpper(in.State), ",")
				jobs = slices.DeleteFunc(slices.Clone(jobs), func(j api.Job) bool { return !slices.Contains(states, string(j.State)) })
			}
			return page(jobs, index, in.PageParams, func(j api.Job) string { return j.ULID + " " + j.ID }, true)
		})

	create := op(http.MethodPost, "/api/v1/jobs", "create-job", "Submit a job")
	create.DefaultStatus = http.StatusCreated
	create.Description = "Answers 200 with the job of the first request when the Idempotency-Key was used for the same request before, 422 when it was used for another."
	register(s, create, func(o *huma.Operation) { takes[api.JobSpec](s, o, true) }, s.submit)

	register(s, op(http.MethodGet, "/api/v1/jobs/{id}", "get-job", "One job, at once or when it changes"), nil, s.getJob)

	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/stop", "stop-job", "End a job; answers when its processes are gone"),
		func(o *huma.Operation) { takes[api.StopRequest](s, o, false) }, s.stopJob)

	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/scale", "scale-job", "Give a job another number of ranks at an agreed step; answers at once"),
		func(o *huma.Operation) { takes[api.ScaleRequest](s, o, true) }, s.scaleJob)

	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/disown", "disown-job", "Let a job go on when the process that owns it ends"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Job], error) {
			job, err := s.b.Disown(r, in.ID)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Job]{job.Index, job}, nil
		})

	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/signal", "signal-job", "Send a signal to the main process of each rank"),
		func(o *huma.Operation) { takes[api.SignalRequest](s, o, true) },
		func(r *request, in *struct {
			IDParam
			RawBody []byte `contentType:"application/json"`
		},
		) (*bodyOutput[api.SignalResult], error) {
			var body api.SignalRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			sent, err := s.b.Signal(r, in.ID, body)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.SignalResult]{s.b.Index(), sent}, nil
		})

	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/faults", "inject-fault", "Harm a running job on purpose, to see it recover"),
		func(o *huma.Operation) { takes[api.FaultRequest](s, o, true) },
		func(r *request, in *struct {
			IDParam
			RawBody []byte `contentType:"application/json"`
		},
		) (*bodyOutput[api.FaultResult], error) {
			var body api.FaultRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			did, err := s.b.InjectFault(r, in.ID, body)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.FaultResult]{s.b.Index(), did}, nil
		})

	register(s, op(http.MethodGet, "/api/v1/jobs/{id}/why", "why-job", "What blocks a job, by name, and what would free it"), nil,
		func(r *request, in *struct {
			IDParam
			WhatIfParam
		},
		) (*bodyOutput[api.Why], error) {
			return s.why(r, "job/"+in.ID, in.WhatIf)
		})
}

func (s *server) submit(r *request, in *struct {
	KeyHeaders
	RawBody []byte `contentType:"application/json"`
},
) (*createdOutput[api.Job], error) {
	var spec api.JobSpec
	if err := decode(in.RawBody, &spec); err != nil {
		return nil, err
	}
	if err := new(checks).job(spec); err != nil {
		return nil, err
	}
	// Who owns the job and where its environment waits differ from one invocation to
	// the next of the same request.
	same := spec
	same.Owner, same.LaunchEnv = nil, ""
	key, err := s.idempotency(in.KeyHeaders, "job", same)
	if err != nil {
		return nil, err
	}
	made, err := s.b.Submit(r, spec, key)
	if err != nil {
		return nil, err
	}
	job, err := s.b.Job(r, made.ID)
	if err != nil {
		return nil, err
	}
	out := &createdOutput[api.Job]{Status: http.StatusCreated, Location: "/api/v1/jobs/" + url.PathEscape(job.ID), Index: made.Index, Body: job}
	if !made.Previously.IsZero() {
		out.Status = http.StatusOK
		out.Body.PreviouslySubmitted = &made.Previously
	}
	return out, nil
}

// idempotency checks the key and fingerprints the request, so that the same key with
// another request is found out (422) and not answered with the wrong thing.
func (s *server) idempotency(in KeyHeaders, kind string, request any) (Idempotency, error) {
	if in.Key == "" {
		return Idempotency{}, nil
	}
	if len(in.Key) > maxIdempotent || strings.ContainsFunc(in.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Idempotency{}, invalid([]api.FieldError{{Pointer: "header/Idempotency-Key", Detail: fmt.Sprintf("must be 1 to %d printable ASCII characters without spaces", maxIdempotent)}})
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return Idempotency{}, err
	}
	sum := sha256.Sum256(append([]byte(kind+"\n"), raw...))
	key := Idempotency{Key: in.Key, Fingerprint: hex.EncodeToString(sum[:16])}
	if in.Age != "" {
		age, err := unit.ParseDuration(in.Age)
		if err != nil {
			return Idempotency{}, invalid([]api.FieldError{{Pointer: "header/Idempotency-Age", Detail: err.Error()}})
		}
		key.FirstSent = s.now().Add(-age.D())
	}
	return key, nil
}

// jobConditions are the words that `for` takes. A condition that can no longer come
// true ends the wait too; the caller sees the state.
var jobConditions = map[string]func(api.JobState) bool{
	"running": func(s api.JobState) bool { return s == api.Running || s.Terminal() },
	"done":    api.JobState.Terminal,
}

func (s *server) getJob(r *request, in *struct {
	IDParam
	BlockParams
},
) (*bodyOutput[api.Job], error) {
	wait, err := waiting(in.Wait)
	if err != nil {
		return nil, err
	}
	reached, ok := jobConditions[in.For]
	if in.For != "" && !ok {
		return nil, parameter("for", fmt.Sprintf("%.40q is no condition of a job%s", in.For, suggestion(in.For, keys(jobConditions))))
	}
	out := &bodyOutput[api.Job]{}
	err = s.until(r, wait, func() <-chan struct{} { return s.b.JobChanged(in.ID) }, func() (bool, error) {
		index := s.b.Index()
		job, err := s.b.Job(r, in.ID)
		if err != nil {
			return false, err
		}
		out.Index, out.Body = max(index, job.Index), hideEnv(r, []api.Job{job})[0]
		if reached != nil {
			return reached(job.State), nil
		}
		return job.Index > uint64(in.MinIndex), nil
	})
	return out, err
}

func (s *server) stopJob(r *request, in *struct {
	IDParam
	RawBody []byte `contentType:"application/json"`
},
) (*bodyOutput[api.Job], error) {
	var body api.StopRequest
	if len(in.RawBody) > 0 {
		if err := decode(in.RawBody, &body); err != nil {
			return nil, err
		}
	}
	c := checks{}
	c.text("/reason", body.Reason, maxReason)
	c.word("/checkpoint", body.Checkpoint, "wait", "skip")
	saved := body.Checkpoint == "wait"
	if saved && body.Grace != nil {
		c.add("/grace", "is for a stop without a checkpoint; give a deadline")
	}
	deadline := c.deadline("/deadline", body.Deadline)
	if deadline > 0 && !saved {
		c.add("/deadline", "is how long to wait for a checkpoint; ask for one")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if saved {
		job, err := s.b.StopSaved(r, in.ID, deadline, body.Reason)
		if err != nil {
			return nil, err
		}
		return &bodyOutput[api.Job]{job.Index, job}, nil
	}
	var grace time.Duration
	if body.Grace != nil {
		grace = max(body.Grace.D(), 1) // zero would mean the job's own
	}
	job, err := s.b.Stop(r, in.ID, grace, body.Reason)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[api.Job]{job.Index, job}, nil
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// hidden stands for a value that the reader's role may not see.
const hidden = "***"

// hideEnv leaves the names and hides the values of jobs' environments from whoever may
// not submit: people put keys there.
func hideEnv(ctx context.Context, jobs []api.Job) []api.Job {
	if access.IdentityOf(ctx).Role >= access.Admin {
		return jobs
	}
	out := slices.Clone(jobs)
	for i := range out {
		env := make(map[string]string, len(out[i].Spec.Env))
		for k := range out[i].Spec.Env {
			env[k] = hidden
		}
		out[i].Spec.Env = env
	}
	return out
}
