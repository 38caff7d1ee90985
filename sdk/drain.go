package troupe

import (
	"context"
	"net/http"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// StopJobSaved lets the ranks of a job agree on a step, save it and end, and returns when
// its processes are gone. After deadline the job is ended all the same; 0: never.
func (c *Client) StopJobSaved(ctx context.Context, id string, deadline time.Duration, reason string) (api.Job, error) {
	req := api.StopRequest{Reason: reason, Checkpoint: "wait"}
	if deadline > 0 {
		d := unit.Duration(deadline)
		req.Deadline = &d
	}
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/stop", body: req}, &j)
	return j, err
}

// ScaleJob asks for another number of ranks, which the job gets at an agreed step. It
// returns at once; the job's Spec.Ranks says when it is done.
func (c *Client) ScaleJob(ctx context.Context, id string, ranks int64, reason string) (api.Job, error) {
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/scale", body: api.ScaleRequest{Ranks: ranks, Reason: reason}}, &j)
	return j, err
}

// Node by id or name.
func (c *Client) Node(ctx context.Context, id string) (api.Node, error) {
	var n api.Node
	return n, c.get(ctx, "/api/v1/nodes/"+seg(id), nil, &n)
}

// DrainNode keeps new work off a node and lets what runs there leave; after deadline what
// is left is ended by force, 0: never. It returns at once; Cordon.Drained says when
// nothing is left.
func (c *Client) DrainNode(ctx context.Context, id string, deadline time.Duration, reason string) (api.Node, error) {
	req := api.DrainRequest{Reason: reason}
	if deadline > 0 {
		d := unit.Duration(deadline)
		req.Deadline = &d
	}
	return c.onNode(ctx, id, "drain", req)
}

// CordonNode keeps new work off a node; what runs there runs on.
func (c *Client) CordonNode(ctx context.Context, id, reason string) (api.Node, error) {
	return c.onNode(ctx, id, "cordon", api.DrainRequest{Reason: reason})
}

// UncordonNode lets a node take work again and ends its drain.
func (c *Client) UncordonNode(ctx context.Context, id string) (api.Node, error) {
	return c.onNode(ctx, id, "uncordon", nil)
}

func (c *Client) onNode(ctx context.Context, id, what string, body any) (api.Node, error) {
	var n api.Node
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/nodes/" + seg(id) + "/" + what, body: body}, &n)
	return n, err
}
