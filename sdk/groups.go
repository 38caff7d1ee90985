package troupe

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// CreateGroup asks for a placement group: all bundles or none.
func (c *Client) CreateGroup(ctx context.Context, spec api.GroupSpec, key string) (api.Group, error) {
	if key == "" {
		var err error
		if key, err = NewKey(); err != nil {
			return api.Group{}, err
		}
	}
	var g api.Group
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/placement-groups", body: spec, key: key}, &g)
	return g, err
}

// Groups lists placement groups, newest first; all when limit is 0.
func (c *Client) Groups(ctx context.Context, limit int) (api.List[api.Group], error) {
	return list[api.Group](ctx, c, "/api/v1/placement-groups", nil, limit)
}

// Group by id or unique prefix.
func (c *Client) Group(ctx context.Context, id string) (api.Group, error) {
	var g api.Group
	return g, c.get(ctx, "/api/v1/placement-groups/"+seg(id), nil, &g)
}

// WaitGroup returns when the group holds all of its bundles, or with ctx's error and
// the group as it was last seen: its Reason says what it waits for.
func (c *Client) WaitGroup(ctx context.Context, id string) (api.Group, error) {
	var last api.Group
	for {
		wait := longPoll
		if d, ok := ctx.Deadline(); ok {
			wait = max(min(wait, time.Until(d)-100*time.Millisecond), time.Millisecond)
		}
		var g api.Group
		q := url.Values{"wait": {wait.Round(time.Millisecond).String()}, "for": {"placed"}}
		if err := c.get(ctx, "/api/v1/placement-groups/"+seg(id), q, &g); err != nil {
			if ctx.Err() != nil && last.ID != "" {
				return last, ctx.Err()
			}
			return last, err
		}
		last = g
		if g.State != api.GroupPending {
			return g, nil
		}
		if d, ok := ctx.Deadline(); ok && time.Until(d) <= 100*time.Millisecond {
			return g, context.DeadlineExceeded
		}
	}
}

// RemoveGroup ends a group and returns when nothing is charged to it any more.
func (c *Client) RemoveGroup(ctx context.Context, id string) (api.Group, error) {
	var g api.Group
	_, err := c.do(ctx, call{method: http.MethodDelete, path: "/api/v1/placement-groups/" + seg(id), once: true}, &g)
	return g, err
}

// Nodes lists nodes by name; all when limit is 0.
func (c *Client) Nodes(ctx context.Context, limit int) (api.List[api.Node], error) {
	return list[api.Node](ctx, c, "/api/v1/nodes", nil, limit)
}

// Actors lists actors, newest first; all when limit is 0.
func (c *Client) Actors(ctx context.Context, limit int) (api.List[api.Actor], error) {
	return list[api.Actor](ctx, c, "/api/v1/actors", nil, limit)
}

// Actor by id, unique prefix, or namespace/name.
func (c *Client) Actor(ctx context.Context, id string) (api.Actor, error) {
	var a api.Actor
	return a, c.get(ctx, "/api/v1/actors/"+seg(id), nil, &a)
}

// KillActor ends an actor for good, or with restart lets it come back if it may.
func (c *Client) KillActor(ctx context.Context, id string, restart bool) (api.Actor, error) {
	var a api.Actor
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/actors/" + seg(id) + "/kill", body: api.KillRequest{Restart: restart}}, &a)
	return a, err
}

// BusAccess asks for credentials to call actors for a while.
func (c *Client) BusAccess(ctx context.Context) (api.BusAccess, error) {
	var b api.BusAccess
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/bus-access"}, &b)
	return b, err
}

// SignInCode makes a one-time address of the page.
func (c *Client) SignInCode(ctx context.Context) (api.SignInCode, error) {
	var s api.SignInCode
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/ui/sign-in-codes"}, &s)
	return s, err
}
