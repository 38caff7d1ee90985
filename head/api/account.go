package api

import (
	"fmt"
	"net/http"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// account serves what became of a job's time, its attempts and its failures.
func (s *server) account() {
	register(s, op(http.MethodGet, "/api/v1/jobs/{id}/goodput", "get-job-goodput", "Where a job's time went; the parts add up to its wall time"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Goodput], error) {
			index := s.b.Index()
			g, err := s.b.Goodput(r, in.ID)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Goodput]{index, g}, nil
		})
	register(s, op(http.MethodGet, "/api/v1/jobs/{id}/history", "list-job-history", "A job's attempts, the oldest first, and what each cost"), nil,
		func(r *request, in *struct {
			IDParam
			PageParams
		},
		) (*listOutput[api.History], error) {
			rows, index, err := s.b.History(r, in.ID)
			if err != nil {
				return nil, err
			}
			return page(rows, index, in.PageParams, func(h api.History) string { return fmt.Sprintf("%020d", h.Generation) }, false)
		})
	register(s, op(http.MethodGet, "/api/v1/jobs/{id}/failures", "list-job-failures", "What failed in a job: attempts in order, the root cause of each first"), nil,
		func(r *request, in *struct {
			IDParam
			PageParams
			Attempt int64 `query:"attempt" default:"-1" minimum:"-1" doc:"Only of this attempt; -1: of all."`
		},
		) (*listOutput[api.FailureRow], error) {
			rows, index, err := s.b.Failures(r, in.ID)
			if err != nil {
				return nil, err
			}
			var kept []api.FailureRow
			keys := map[string]int{}
			for i, f := range rows {
				if in.Attempt < 0 || f.Attempt == in.Attempt {
					kept = append(kept, f)
					keys[failureKey(f)] = i
				}
			}
			return page(kept, index, in.PageParams, func(f api.FailureRow) string { return fmt.Sprintf("%09d", keys[failureKey(f)]) }, false)
		})
	register(s, op(http.MethodPost, "/api/v1/jobs/{id}/stacks", "read-job-stacks", "Where a job's ranks stand now, equal ones together"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Stacks], error) {
			st, err := s.b.Stacks(r, in.ID)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Stacks]{s.b.Index(), st}, nil
		})
}

// failureKey tells the failures of a job apart: a rank fails once in an attempt.
func failureKey(f api.FailureRow) string {
	return fmt.Sprint(f.Attempt, f.Rank, f.Root, f.Time.UnixNano(), f.Node)
}
