package api

import (
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// StepParam names one step of a run.
type StepParam struct {
	Run        string `path:"run" maxLength:"4096" doc:"The run, or the id of a job of it; slashes in it as %2F."`
	Step       int64  `path:"step" minimum:"0"`
	Generation int64  `query:"generation" minimum:"0" doc:"Of this generation; default the one that stands."`
}

// RunParam names a run.
type RunParam struct {
	Run string `path:"run" maxLength:"4096" doc:"The run, or the id of a job of it; slashes in it as %2F."`
}

type checkpointsOutput struct {
	Index uint64 `header:"X-Troupe-Index"`
	Body  api.CheckpointList
}

func (s *server) checkpoints() {
	register(s, op(http.MethodGet, "/api/v1/checkpoints", "list-checkpoints", "Committed steps of a run, or of all, the newest first"), nil,
		func(r *request, in *struct {
			PageParams
			Run string `query:"run" maxLength:"4096" doc:"Only of this run."`
		},
		) (*checkpointsOutput, error) {
			rows, index, err := s.b.Checkpoints(r, in.Run)
			if err != nil {
				return nil, err
			}
			l, err := page(rows, index, in.PageParams, func(c api.Checkpoint) string {
				return fmt.Sprintf("%s %019d %020d", c.Run, c.Step, c.Generation)
			}, true)
			if err != nil {
				return nil, err
			}
			out := &checkpointsOutput{Index: l.Index, Body: api.CheckpointList{List: l.Body}}
			if in.Run != "" {
				out.Body.Saving = s.b.Saving(r, in.Run)
			}
			return out, nil
		})
	const step = "/api/v1/checkpoints/{run}/{step}"
	register(s, op(http.MethodPost, step+"/verify", "verify-checkpoint", "Read a committed step again and compare every digest"), nil,
		func(r *request, in *struct {
			Run  string `path:"run" maxLength:"4096" doc:"The run; slashes in it as %2F."`
			Step int64  `path:"step" minimum:"0"`
		},
		) (*bodyOutput[api.VerifyResult], error) {
			result, err := s.b.Verify(r, in.Run, in.Step)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.VerifyResult]{s.b.Index(), result}, nil
		})
	register(s, op(http.MethodGet, step, "get-checkpoint", "One step with its manifest, which a node reads"), nil,
		func(r *request, in *StepParam) (*bodyOutput[api.CheckpointDetail], error) {
			c, err := s.b.Checkpoint(r, in.Run, in.Step, uint64(in.Generation))
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.CheckpointDetail]{s.b.Index(), c}, nil
		})
	register(s, op(http.MethodDelete, step, "remove-checkpoint", "Delete a step; refused for a pinned one and the one that a live attempt restores from"), nil,
		func(r *request, in *StepParam) (*bodyOutput[api.Checkpoint], error) {
			c, err := s.b.RemoveCheckpoint(r, in.Run, in.Step, uint64(in.Generation))
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Checkpoint]{s.b.Index(), c}, nil
		})
	for _, pin := range []struct {
		word, summary string
		pinned        bool
	}{{"pin", "Keep a step from retention and removal", true}, {"unpin", "Leave a step to retention again", false}} {
		register(s, op(http.MethodPost, step+"/"+pin.word, pin.word+"-checkpoint", pin.summary), nil,
			func(r *request, in *StepParam) (*bodyOutput[api.Checkpoint], error) {
				c, err := s.b.PinCheckpoint(r, in.Run, in.Step, uint64(in.Generation), pin.pinned)
				if err != nil {
					return nil, err
				}
				return &bodyOutput[api.Checkpoint]{s.b.Index(), c}, nil
			})
	}
	register(s, op(http.MethodPost, step+"/export", "export-checkpoint", "Copy a committed step to a folder of a node, every byte compared with its manifest"),
		func(o *huma.Operation) { takes[api.ExportRequest](s, o, true) },
		func(r *request, in *struct {
			StepParam
			RawBody []byte `contentType:"application/json"`
		},
		) (*bodyOutput[api.ExportResult], error) {
			var body api.ExportRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			out, err := s.b.ExportCheckpoint(r, in.Run, in.Step, uint64(in.Generation), body)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.ExportResult]{s.b.Index(), out}, nil
		})
	s.runs()
}

// runs serves what concerns all steps of a run.
func (s *server) runs() {
	const run = "/api/v1/checkpoints/{run}"
	register(s, op(http.MethodPost, run+"/adopt", "adopt-checkpoints", "Take the committed steps of a run's folder, which another cluster or another life of this one saved, into the records"),
		func(o *huma.Operation) { takes[api.AdoptRequest](s, o, true) },
		func(r *request, in *struct {
			RunParam
			RawBody []byte `contentType:"application/json"`
		},
		) (*bodyOutput[api.AdoptResult], error) {
			var body api.AdoptRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			out, err := s.b.Adopt(r, in.Run, body.Store)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.AdoptResult]{s.b.Index(), out}, nil
		})
	register(s, op(http.MethodPost, run+"/gc", "collect-checkpoint-garbage", "Remove what attempts of a run left half written"), nil,
		func(r *request, in *RunParam) (*bodyOutput[api.GCResult], error) {
			out, err := s.b.CollectGarbage(r, in.Run)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.GCResult]{s.b.Index(), out}, nil
		})
	register(s, op(http.MethodGet, run+"/lineage", "get-lineage", "How the steps and attempts of a run came out of each other"), nil,
		func(r *request, in *RunParam) (*bodyOutput[api.Lineage], error) {
			out, err := s.b.Lineage(r, in.Run)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Lineage]{s.b.Index(), out}, nil
		})
}
