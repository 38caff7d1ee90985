package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

func (s *server) nodes() {
	register(s, op(http.MethodGet, "/api/v1/nodes", "list-nodes", "Nodes by name"), nil,
		func(r *request, in *PageParams) (*listOutput[api.Node], error) {
			nodes, index, err := s.b.Nodes(r)
			if err != nil {
				return nil, err
			}
			return page(nodes, index, *in, func(n api.Node) string { return n.Name + " " + n.ID }, false)
		})
	register(s, op(http.MethodGet, "/api/v1/nodes/{id}", "get-node", "One node, by id or name"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Node], error) {
			nodes, index, err := s.b.Nodes(r)
			if err != nil {
				return nil, err
			}
			node, err := findNode(nodes, in.ID)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Node]{index, node}, nil
		})
}

// findNode takes a whole id or name first, then a prefix that only one has.
func findNode(nodes []api.Node, id string) (api.Node, error) {
	var found []api.Node
	for _, n := range nodes {
		if n.ID == id || n.Name == id {
			return n, nil
		}
		if strings.HasPrefix(n.ID, id) || strings.HasPrefix(n.Name, id) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return api.Node{}, notFound("node", fmt.Sprintf("%.80q", id))
	}
	names := make([]string, 0, 10)
	for _, n := range found[:min(len(found), 10)] {
		names = append(names, n.Name)
	}
	return api.Node{}, access.NewProblem(http.StatusConflict, access.CodeAmbiguous, api.ExitUsage,
		fmt.Sprintf("%d nodes begin with %.80q: %s", len(found), id, strings.Join(names, ", ")), "give more of the id")
}

func (s *server) actors() {
	register(s, op(http.MethodGet, "/api/v1/actors", "list-actors", "Actors by id"), nil,
		func(r *request, in *PageParams) (*listOutput[api.Actor], error) {
			actors, index, err := s.b.Actors(r)
			if err != nil {
				return nil, err
			}
			return page(actors, index, *in, func(a api.Actor) string { return a.ID }, false)
		})
	register(s, op(http.MethodGet, "/api/v1/actors/{id}", "get-actor", "One actor, by id or by namespace/name with the slash as %2F"), nil,
		func(r *request, in *struct {
			IDParam
			Wait string `query:"wait" doc:"How long to wait for what for asks, at most 30s."`
			For  string `query:"for" enum:"alive,dead" doc:"Wait until the actor is in this state, or dead."`
		},
		) (*bodyOutput[api.Actor], error) {
			wait, err := waiting(in.Wait)
			if err != nil {
				return nil, err
			}
			out := &bodyOutput[api.Actor]{}
			err = s.until(r, wait, s.b.Changed, func() (bool, error) {
				index := s.b.Index()
				actor, err := s.b.Actor(r, in.ID)
				if err != nil {
					return false, err
				}
				out.Index, out.Body = index, actor
				return in.For == "" || actor.State == "DEAD" || strings.EqualFold(actor.State, in.For), nil
			})
			return out, err
		})
	register(s, op(http.MethodPost, "/api/v1/actors/{id}/kill", "kill-actor", "End an actor's process"),
		func(o *huma.Operation) { takes[api.KillRequest](s, o, false) },
		func(r *request, in *struct {
			IDParam
			RawBody []byte `contentType:"application/json"`
		},
		) (*bodyOutput[api.Actor], error) {
			var body api.KillRequest
			if len(in.RawBody) > 0 {
				if err := decode(in.RawBody, &body); err != nil {
					return nil, err
				}
			}
			actor, err := s.b.KillActor(r, in.ID, body.Restart)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Actor]{s.b.Index(), actor}, nil
		})
}
