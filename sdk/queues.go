package troupe

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Queues lists tenants and queues by name, with what is charged to them; all when limit
// is 0.
func (c *Client) Queues(ctx context.Context, limit int) (api.List[api.QueueStatus], error) {
	return list[api.QueueStatus](ctx, c, "/api/v1/queues", nil, limit)
}

// Queue is one tenant or queue.
func (c *Client) Queue(ctx context.Context, name string) (api.QueueStatus, error) {
	var q api.QueueStatus
	return q, c.get(ctx, "/api/v1/queues/"+seg(name), nil, &q)
}

// PutQueues replaces tenants and queues, as one change.
func (c *Client) PutQueues(ctx context.Context, r api.QueuesRequest) error {
	return c.put(ctx, "/api/v1/queues", r)
}

// RemoveQueue removes one that nothing uses; with a version only if it stands at it.
func (c *Client) RemoveQueue(ctx context.Context, name string, version uint64) error {
	return c.remove(ctx, "/api/v1/queues/"+seg(name), version)
}

// PauseQueue lets nothing of a tenant or queue start; ResumeQueue takes it back.
func (c *Client) PauseQueue(ctx context.Context, name, reason string) (api.QueueStatus, error) {
	return c.onQueue(ctx, name, "pause", api.PauseRequest{Reason: reason})
}

// ResumeQueue lets work of a paused tenant or queue start again.
func (c *Client) ResumeQueue(ctx context.Context, name string) (api.QueueStatus, error) {
	return c.onQueue(ctx, name, "resume", nil)
}

func (c *Client) onQueue(ctx context.Context, name, verb string, body any) (api.QueueStatus, error) {
	var q api.QueueStatus
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/queues/" + seg(name) + "/" + verb, body: body}, &q)
	return q, err
}

// QueueOrder is what waits in a tenant or queue, in its order; of all with an empty name.
func (c *Client) QueueOrder(ctx context.Context, name string, limit int) (api.List[api.OrderRow], error) {
	if name == "" {
		name = "-"
	}
	return list[api.OrderRow](ctx, c, "/api/v1/queues/"+seg(name)+"/order", nil, limit)
}

// Usage sums what each tenant, queue or user had of the GPUs. since is a time or how long
// ago, as 24h; empty: from the beginning.
func (c *Client) Usage(ctx context.Context, by, since string, limit int) (api.List[api.UsageRow], error) {
	q := url.Values{}
	if by != "" {
		q.Set("by", by)
	}
	if since != "" {
		q.Set("since", since)
	}
	return list[api.UsageRow](ctx, c, "/api/v1/usage", q, limit)
}

// Outlook says what would become of a job if it were submitted now; it changes nothing.
func (c *Client) Outlook(ctx context.Context, s api.JobSpec) (api.Outlook, error) {
	var o api.Outlook
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/outlook", body: s}, &o)
	return o, err
}

// Declared is what is declared beside nodes and queues.
func (c *Client) Declared(ctx context.Context) (api.Declared, error) {
	var d api.Declared
	return d, c.get(ctx, "/api/v1/declared", nil, &d)
}

// PutReservation makes or replaces a reservation.
func (c *Client) PutReservation(ctx context.Context, r api.ReservationRequest) error {
	return c.put(ctx, "/api/v1/reservations/"+seg(r.Name), r)
}

// RemoveReservation ends one.
func (c *Client) RemoveReservation(ctx context.Context, name string, version uint64) error {
	return c.remove(ctx, "/api/v1/reservations/"+seg(name), version)
}

// PutCapacity makes or replaces a capacity.
func (c *Client) PutCapacity(ctx context.Context, r api.CapacityRequest) error {
	return c.put(ctx, "/api/v1/capacities/"+seg(r.Name), r)
}

// RemoveCapacity removes one that nothing uses.
func (c *Client) RemoveCapacity(ctx context.Context, name string, version uint64) error {
	return c.remove(ctx, "/api/v1/capacities/"+seg(name), version)
}

// PutTopology replaces the levels of the topology or the half-life of use.
func (c *Client) PutTopology(ctx context.Context, r api.TopologyRequest) error {
	return c.put(ctx, "/api/v1/topology", r)
}

// PutLinks tells how links are.
func (c *Client) PutLinks(ctx context.Context, r api.LinksRequest) error {
	return c.put(ctx, "/api/v1/links", r)
}

func (c *Client) put(ctx context.Context, path string, body any) error {
	_, err := c.do(ctx, call{method: http.MethodPut, path: path, body: body}, nil)
	return err
}

func (c *Client) remove(ctx context.Context, path string, version uint64) error {
	var q url.Values
	if version > 0 {
		q = url.Values{"ifVersion": {strconv.FormatUint(version, 10)}}
	}
	_, err := c.do(ctx, call{method: http.MethodDelete, path: path, query: q, once: true}, nil)
	return err
}

// HoldJob keeps a waiting job from starting; ReleaseJob takes it back.
func (c *Client) HoldJob(ctx context.Context, id, reason string) (api.Job, error) {
	return c.park(ctx, id, "hold", api.ParkRequest{Reason: reason})
}

// ReleaseJob lets a held job wait again.
func (c *Client) ReleaseJob(ctx context.Context, id, reason string) (api.Job, error) {
	return c.park(ctx, id, "release", api.ParkRequest{Reason: reason})
}

// SuspendJob lets a job save and give back what it holds. It returns at once; the job is
// SUSPENDED when it is done. After deadline its ranks are ended all the same; 0: never.
func (c *Client) SuspendJob(ctx context.Context, id string, deadline time.Duration, reason string) (api.Job, error) {
	r := api.ParkRequest{Reason: reason}
	if deadline > 0 {
		d := unit.Duration(deadline)
		r.Deadline = &d
	}
	return c.park(ctx, id, "suspend", r)
}

// ResumeJob lets a suspended job wait again, with its seniority.
func (c *Client) ResumeJob(ctx context.Context, id, reason string) (api.Job, error) {
	return c.park(ctx, id, "resume", api.ParkRequest{Reason: reason})
}

func (c *Client) park(ctx context.Context, id, verb string, r api.ParkRequest) (api.Job, error) {
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/" + verb, body: r}, &j)
	return j, err
}

// RequeueJob submits a job that has ended once more: a new job of the same run.
func (c *Client) RequeueJob(ctx context.Context, id, key string) (api.Job, error) {
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/requeue", key: key}, &j)
	return j, err
}

// EditJob changes queue, priority and limits of a waiting job.
func (c *Client) EditJob(ctx context.Context, id string, r api.EditRequest) (api.Job, error) {
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPatch, path: "/api/v1/jobs/" + seg(id), body: r}, &j)
	return j, err
}
