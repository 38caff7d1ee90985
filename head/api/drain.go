package api

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// maxDeadline bounds how far away a deadline may be.
const maxDeadline = 365 * 24 * time.Hour

// word takes one of a few words, or none.
func (c *checks) word(pointer, s string, known ...string) {
	if s != "" && !slices.Contains(known, s) {
		c.add(pointer, "%.40q is none of %s", s, strings.Join(known, ", "))
	}
}

// deadline takes a time from now on; 0 for none.
func (c *checks) deadline(pointer string, d *unit.Duration) time.Duration {
	switch {
	case d == nil:
		return 0
	case d.D() < 0 || d.D() > maxDeadline:
		c.add(pointer, "%s: not negative, at most %s", d, unit.Duration(maxDeadline))
		return 0
	}
	return max(d.D(), 1) // zero would mean none
}

func (s *server) scaleJob(r *request, in *struct {
	IDParam
	RawBody []byte `contentType:"application/json"`
},
) (*bodyOutput[api.Job], error) {
	var body api.ScaleRequest
	if err := decode(in.RawBody, &body); err != nil {
		return nil, err
	}
	c := checks{}
	c.text("/reason", body.Reason, maxReason)
	if body.Ranks < 1 || body.Ranks > maxRanks {
		c.add("/ranks", "is %d; 1 to %d", body.Ranks, maxRanks)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	job, err := s.b.Scale(r, in.ID, body.Ranks, body.Reason)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[api.Job]{job.Index, job}, nil
}

func (s *server) drains() {
	for _, x := range []struct {
		path, id, text string
		drain          bool
	}{
		{"/api/v1/nodes/{id}/drain", "drain-node", "Keep new work off a node and let what runs there leave; answers at once", true},
		{"/api/v1/nodes/{id}/cordon", "cordon-node", "Keep new work off a node", false},
	} {
		register(s, op(http.MethodPost, x.path, x.id, x.text),
			func(o *huma.Operation) { takes[api.DrainRequest](s, o, false) },
			func(r *request, in *struct {
				IDParam
				RawBody []byte `contentType:"application/json"`
			},
			) (*bodyOutput[api.Node], error) {
				var body api.DrainRequest
				if len(in.RawBody) > 0 {
					if err := decode(in.RawBody, &body); err != nil {
						return nil, err
					}
				}
				c := checks{}
				c.text("/reason", body.Reason, maxReason)
				deadline := c.deadline("/deadline", body.Deadline)
				if deadline > 0 && !x.drain {
					c.add("/deadline", "is for a drain")
				}
				if err := c.err(); err != nil {
					return nil, err
				}
				return s.onNode(r, in.ID, func(id string) (api.Node, error) {
					return s.b.DrainNode(r, id, x.drain, deadline, body.Reason)
				})
			})
	}
	register(s, op(http.MethodPost, "/api/v1/nodes/{id}/uncordon", "uncordon-node", "Let a node take work again, and end its drain"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Node], error) {
			return s.onNode(r, in.ID, func(id string) (api.Node, error) { return s.b.UncordonNode(r, id) })
		})
}

// onNode resolves a node by id, name or prefix and does something to it.
func (s *server) onNode(r *request, id string, f func(id string) (api.Node, error)) (*bodyOutput[api.Node], error) {
	nodes, _, err := s.b.Nodes(r)
	if err != nil {
		return nil, err
	}
	n, err := findNode(nodes, id)
	if err != nil {
		return nil, err
	}
	if n, err = f(n.ID); err != nil {
		return nil, err
	}
	return &bodyOutput[api.Node]{s.b.Index(), n}, nil
}
