package api

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/runtime/api"
)

var groupConditions = map[string]func(api.GroupState) bool{
	"placed":  func(s api.GroupState) bool { return s != api.GroupPending },
	"removed": func(s api.GroupState) bool { return s == api.GroupRemoved },
}

func (s *server) groups() {
	const base = "/api/v1/placement-groups"
	register(s, op(http.MethodGet, base, "list-placement-groups", "Placement groups, the newest first"), nil,
		func(r *request, in *PageParams) (*listOutput[api.Group], error) {
			groups, index, err := s.b.Groups(r)
			if err != nil {
				return nil, err
			}
			return page(groups, index, *in, func(g api.Group) string { return sortable(g.Created) + " " + g.ID }, true)
		})

	create := op(http.MethodPost, base, "create-placement-group", "Ask for bundles that are held together, all or none")
	create.DefaultStatus = http.StatusCreated
	register(s, create, func(o *huma.Operation) { takes[api.GroupSpec](s, o, true) }, s.createGroup)

	register(s, op(http.MethodGet, base+"/{id}", "get-placement-group", "One placement group, at once or when it is placed"), nil, s.getGroup)

	register(s, op(http.MethodDelete, base+"/{id}", "remove-placement-group", "Give the bundles back; answers when what ran in them is gone"), nil,
		func(r *request, in *IDParam) (*bodyOutput[api.Group], error) {
			group, err := s.b.RemoveGroup(r, in.ID)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Group]{group.Index, group}, nil
		})
}

func (s *server) createGroup(r *request, in *struct {
	KeyHeaders
	RawBody []byte `contentType:"application/json"`
},
) (*createdOutput[api.Group], error) {
	var spec api.GroupSpec
	if err := decode(in.RawBody, &spec); err != nil {
		return nil, err
	}
	if err := new(checks).group(spec); err != nil {
		return nil, err
	}
	key, err := s.idempotency(in.KeyHeaders, "placement-group", spec)
	if err != nil {
		return nil, err
	}
	made, err := s.b.CreateGroup(r, spec, key)
	if err != nil {
		return nil, err
	}
	group, err := s.b.Group(r, made.ID)
	if err != nil {
		return nil, err
	}
	out := &createdOutput[api.Group]{Status: http.StatusCreated, Location: "/api/v1/placement-groups/" + url.PathEscape(group.ID), Index: made.Index, Body: group}
	if !made.Previously.IsZero() {
		out.Status = http.StatusOK
	}
	return out, nil
}

func (s *server) getGroup(r *request, in *struct {
	IDParam
	BlockParams
},
) (*bodyOutput[api.Group], error) {
	wait, err := waiting(in.Wait)
	if err != nil {
		return nil, err
	}
	reached, ok := groupConditions[in.For]
	if in.For != "" && !ok {
		return nil, parameter("for", fmt.Sprintf("%.40q is no condition of a placement group%s", in.For, suggestion(in.For, keys(groupConditions))))
	}
	out := &bodyOutput[api.Group]{}
	err = s.until(r, wait, func() <-chan struct{} { return s.b.GroupChanged(in.ID) }, func() (bool, error) {
		index := s.b.Index()
		group, err := s.b.Group(r, in.ID)
		if err != nil {
			return false, err
		}
		out.Index, out.Body = max(index, group.Index), group
		if reached != nil {
			return reached(group.State), nil
		}
		return group.Index > uint64(in.MinIndex), nil
	})
	return out, err
}

// sortable is a time whose text sorts as it does.
func sortable(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }
