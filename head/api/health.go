package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

type none struct{}

type statusText struct {
	Status string `json:"status" doc:"ok"`
}

type bodyOutput[T any] struct {
	Index uint64 `header:"X-Troupe-Index"`
	Body  T
}

type plainOutput[T any] struct{ Body T }

func (s *server) health() {
	live := op(http.MethodGet, "/livez", "live", "Whether the process lives")
	register(s, live, nil, func(*request, *none) (*plainOutput[statusText], error) {
		return &plainOutput[statusText]{statusText{"ok"}}, nil
	})
	ready := op(http.MethodGet, "/readyz", "ready", "Whether this head can answer for the cluster")
	register(s, ready, nil, func(r *request, _ *none) (*plainOutput[statusText], error) {
		if err := s.b.Ready(r); err != nil {
			// Anybody may ask, so the cause stays in the log.
			s.log.InfoContext(r, "not ready", "err", err)
			p, _ := access.RetryLater(http.StatusServiceUnavailable, access.CodeClosing, "this head is not ready", time.Second)
			return nil, p
		}
		return &plainOutput[statusText]{statusText{"ok"}}, nil
	})
	register(s, op(http.MethodGet, "/version", "version", "What this binary is"), nil,
		func(*request, *none) (*plainOutput[api.Version], error) {
			return &plainOutput[api.Version]{s.b.Version()}, nil
		})
	register(s, op(http.MethodGet, "/api/v1/status", "get-status", "The cluster in numbers"), nil,
		func(r *request, _ *none) (*bodyOutput[api.Status], error) {
			status, err := s.b.Status(r)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Status]{status.Index, status}, nil
		})
	register(s, op(http.MethodGet, "/api/v1/why/{kind}/{id}", "why", "What blocks a thing, by name, and what would free it"), nil,
		func(r *request, in *struct {
			Kind string `path:"kind" doc:"job, pg, node, actor or checkpoint"`
			ID   string `path:"id" doc:"The id; slashes in it may be sent as they are."`
			WhatIfParam
		},
		) (*bodyOutput[api.Why], error) {
			return s.why(r, in.Kind+"/"+in.ID, in.WhatIf)
		})
	register(s, op(http.MethodPost, "/api/v1/bus-access", "create-bus-access", "Credentials for calling actors over the bus for a while"), nil,
		func(r *request, _ *none) (*plainOutput[api.BusAccess], error) {
			access, err := s.b.BusAccess(r)
			if err != nil {
				return nil, err
			}
			return &plainOutput[api.BusAccess]{access}, nil
		})
	register(s, op(http.MethodPost, "/api/v1/ui/sign-in-codes", "create-sign-in-code", "An address that opens the page once, within a minute"), nil,
		s.signInCode)
}

// WhatIfParam asks what would become of a request that waits if it were otherwise.
type WhatIfParam struct {
	WhatIf []string `query:"whatIf,explode" maxItems:"16" doc:"A change, as ranks=8, level=rack, time=2h, priority=5; any: each of its constraints dropped by itself."`
}

func (s *server) why(r *request, target string, whatIf []string) (*bodyOutput[api.Why], error) {
	index := s.b.Index()
	why, err := s.b.Why(r, target, whatIf...)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[api.Why]{index, why}, nil
}

// ownURL learns from the request by which address the caller reaches this head.
type ownURL struct{ base string }

// Resolve implements huma.Resolver.
func (u *ownURL) Resolve(ctx huma.Context) []error {
	scheme := "http"
	if ctx.TLS() != nil {
		scheme = "https"
	}
	u.base = scheme + "://" + ctx.Host()
	return nil
}

func (s *server) signInCode(r *request, in *ownURL) (*plainOutput[api.SignInCode], error) {
	code, expires, err := s.guard.NewSignInCode(r)
	if err != nil {
		return nil, err
	}
	path := access.SignInPath(code)
	return &plainOutput[api.SignInCode]{api.SignInCode{URL: in.base + path, Path: path, Expires: expires.UTC()}}, nil
}
