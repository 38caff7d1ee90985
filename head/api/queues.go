package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

type NameParam struct {
	Name string `path:"name" maxLength:"128" doc:"The name."`
}

type VersionParam struct {
	IfVersion int64 `query:"ifVersion" minimum:"0" doc:"Do it only if it stands at this version."`
}

type rawBody struct {
	RawBody []byte `contentType:"application/json"`
}

// Change is what a change answers: the object as it stands after it.
type Change struct {
	Index uint64 `json:"index"` // of the log at which the change is in the state
}

func (s *server) queues() {
	const base = "/api/v1/queues"
	register(s, op(http.MethodGet, base, "list-queues", "Tenants and queues with what is charged to them, by name"), nil,
		func(r *request, in *PageParams) (*listOutput[api.QueueStatus], error) {
			list, index, err := s.b.Queues(r)
			if err != nil {
				return nil, err
			}
			return page(list, index, *in, func(q api.QueueStatus) string { return q.Name }, false)
		})
	register(s, op(http.MethodPut, base, "put-queues", "Replace tenants and queues one by one, or all of them"),
		func(o *huma.Operation) { takes[api.QueuesRequest](s, o, true) },
		func(r *request, in *rawBody) (*bodyOutput[Change], error) {
			var body api.QueuesRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			return s.did(s.b.PutQueues(r, body))
		})
	register(s, op(http.MethodGet, base+"/{name}", "get-queue", "One tenant or queue"), nil,
		func(r *request, in *NameParam) (*bodyOutput[api.QueueStatus], error) {
			q, err := s.queue(r, in.Name)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.QueueStatus]{s.b.Index(), *q}, nil
		})
	register(s, op(http.MethodDelete, base+"/{name}", "remove-queue", "Remove a tenant or queue that nothing uses"), nil,
		func(r *request, in *struct {
			NameParam
			VersionParam
		},
		) (*bodyOutput[Change], error) {
			return s.did(s.b.PutQueues(r, api.QueuesRequest{Remove: []string{in.Name}, IfVersion: uint64(in.IfVersion)}))
		})
	register(s, op(http.MethodPost, base+"/{name}/pause", "pause-queue", "Let nothing of a tenant or queue start; what runs runs on"),
		func(o *huma.Operation) { takes[api.PauseRequest](s, o, false) },
		func(r *request, in *struct {
			NameParam
			rawBody
		},
		) (*bodyOutput[api.QueueStatus], error) {
			var body api.PauseRequest
			if len(in.RawBody) > 0 {
				if err := decode(in.RawBody, &body); err != nil {
					return nil, err
				}
			}
			c := checks{}
			c.text("/reason", body.Reason, maxReason)
			if err := c.err(); err != nil {
				return nil, err
			}
			if body.Reason == "" {
				body.Reason = "paused on request"
			}
			return s.paused(r, in.Name, body.Reason)
		})
	register(s, op(http.MethodPost, base+"/{name}/resume", "resume-queue", "Let work of a paused tenant or queue start again"), nil,
		func(r *request, in *NameParam) (*bodyOutput[api.QueueStatus], error) { return s.paused(r, in.Name, "") })
	register(s, op(http.MethodGet, base+"/{name}/order", "order-queue", "What waits in a tenant or queue, in the order in which it is looked at; - is all"), nil,
		func(r *request, in *struct {
			NameParam
			PageParams
		},
		) (*listOutput[api.OrderRow], error) {
			name := in.Name
			if name == "-" {
				name = ""
			}
			rows, index, err := s.b.QueueOrder(r, name)
			if err != nil {
				return nil, err
			}
			at := map[string]int{}
			for i := range rows {
				at[rows[i].Group] = i
			}
			return page(rows, index, in.PageParams, func(o api.OrderRow) string { return sortableNumber(at[o.Group]) }, false)
		})
	register(s, op(http.MethodGet, "/api/v1/usage", "usage", "What tenants, queues or users had of the GPUs"), nil,
		func(r *request, in *struct {
			PageParams
			By    string `query:"by" doc:"tenant (default), queue or user."`
			Since string `query:"since" doc:"Only jobs that ended later or live: a time, or how long ago, as 24h."`
		},
		) (*listOutput[api.UsageRow], error) {
			c := checks{}
			c.word("query/by", in.By, "tenant", "queue", "user")
			since, ok := sinceTime(in.Since, s.now())
			if !ok {
				c.add("query/since", "%.40q is neither a time, as 2030-05-01T12:00:00Z, nor how long ago, as 24h", in.Since)
			}
			if err := c.err(); err != nil {
				return nil, err
			}
			rows, index, err := s.b.Usage(r, in.By, since)
			if err != nil {
				return nil, err
			}
			at := map[string]int{}
			for i := range rows {
				at[rows[i].Of] = i
			}
			return page(rows, index, in.PageParams, func(u api.UsageRow) string { return sortableNumber(at[u.Of]) }, false)
		})
	register(s, op(http.MethodPost, "/api/v1/outlook", "outlook", "What would become of a job if it were submitted now; changes nothing"),
		func(o *huma.Operation) { takes[api.JobSpec](s, o, true) },
		func(r *request, in *rawBody) (*bodyOutput[api.Outlook], error) {
			var spec api.JobSpec
			if err := decode(in.RawBody, &spec); err != nil {
				return nil, err
			}
			if err := new(checks).job(spec); err != nil {
				return nil, err
			}
			out, err := s.b.Outlook(r, spec)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Outlook]{s.b.Index(), out}, nil
		})
	s.declared()
	s.parking()
}

// did answers a change.
func (s *server) did(err error) (*bodyOutput[Change], error) {
	if err != nil {
		return nil, err
	}
	index := s.b.Index()
	return &bodyOutput[Change]{index, Change{index}}, nil
}

func (s *server) queue(r *request, name string) (*api.QueueStatus, error) {
	list, _, err := s.b.Queues(r)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Name == name {
			return &list[i], nil
		}
	}
	return nil, notFound("queue", name)
}

func (s *server) paused(r *request, name, reason string) (*bodyOutput[api.QueueStatus], error) {
	if err := s.b.PauseQueue(r, name, reason); err != nil {
		return nil, err
	}
	q, err := s.queue(r, name)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[api.QueueStatus]{s.b.Index(), *q}, nil
}

// sinceTime reads a time or how long ago; "" is the beginning.
func sinceTime(s string, now time.Time) (time.Time, bool) {
	if s == "" {
		return time.Time{}, true
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, true
	}
	d, err := unit.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, false
	}
	return now.Add(-d.D()), true
}

func (s *server) declared() {
	register(s, op(http.MethodGet, "/api/v1/declared", "declared", "Reservations, capacities, levels of the topology and links"), nil,
		func(r *request, _ *struct{}) (*bodyOutput[api.Declared], error) {
			d, err := s.b.Declared(r)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Declared]{d.Index, d}, nil
		})
	register(s, op(http.MethodPut, "/api/v1/reservations/{name}", "put-reservation", "Make or replace a reservation"),
		func(o *huma.Operation) { takes[api.ReservationRequest](s, o, true) },
		func(r *request, in *struct {
			NameParam
			rawBody
		},
		) (*bodyOutput[Change], error) {
			var body api.ReservationRequest
			if err := decodeNamed(in.RawBody, &body, in.Name, &body.Name); err != nil {
				return nil, err
			}
			return s.did(s.b.PutReservation(r, body))
		})
	register(s, op(http.MethodDelete, "/api/v1/reservations/{name}", "remove-reservation", "End a reservation"), nil,
		func(r *request, in *struct {
			NameParam
			VersionParam
		},
		) (*bodyOutput[Change], error) {
			return s.did(s.b.RemoveReservation(r, in.Name, uint64(in.IfVersion)))
		})
	register(s, op(http.MethodPut, "/api/v1/capacities/{name}", "put-capacity", "Make or replace a capacity"),
		func(o *huma.Operation) { takes[api.CapacityRequest](s, o, true) },
		func(r *request, in *struct {
			NameParam
			rawBody
		},
		) (*bodyOutput[Change], error) {
			var body api.CapacityRequest
			if err := decodeNamed(in.RawBody, &body, in.Name, &body.Name); err != nil {
				return nil, err
			}
			return s.did(s.b.PutCapacity(r, body))
		})
	register(s, op(http.MethodDelete, "/api/v1/capacities/{name}", "remove-capacity", "Remove a capacity that nothing uses"), nil,
		func(r *request, in *struct {
			NameParam
			VersionParam
		},
		) (*bodyOutput[Change], error) {
			return s.did(s.b.RemoveCapacity(r, in.Name, uint64(in.IfVersion)))
		})
	register(s, op(http.MethodPut, "/api/v1/topology", "put-topology", "Replace the levels of the topology, or the half-life of use"),
		func(o *huma.Operation) { takes[api.TopologyRequest](s, o, true) },
		func(r *request, in *rawBody) (*bodyOutput[Change], error) {
			var body api.TopologyRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			return s.did(s.b.PutTopology(r, body))
		})
	register(s, op(http.MethodPut, "/api/v1/links", "put-links", "Tell how links are"),
		func(o *huma.Operation) { takes[api.LinksRequest](s, o, true) },
		func(r *request, in *rawBody) (*bodyOutput[Change], error) {
			var body api.LinksRequest
			if err := decode(in.RawBody, &body); err != nil {
				return nil, err
			}
			return s.did(s.b.PutLinks(r, body))
		})
}

// decodeNamed reads a body that may repeat the name of the path, and not another one.
func decodeNamed(raw []byte, into any, name string, field *string) error {
	if err := decode(raw, into); err != nil {
		return err
	}
	if *field != "" && *field != name {
		return invalid([]api.FieldError{{Pointer: "/name", Detail: "is not the name in the path"}})
	}
	*field = name
	return nil
}
