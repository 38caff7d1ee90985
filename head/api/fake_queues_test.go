package api

import (
	"context"
	"errors"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (b *fake) Queues(context.Context) ([]api.QueueStatus, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []api.QueueStatus{
		{Queue: api.Queue{Name: "nlp", Tenant: true, Limit: api.Amounts{{Of: "gpu", N: 4000}}}, Index: 4, Running: 1},
		{Queue: api.Queue{Name: "short", Parent: "nlp"}, Index: 5},
	}, b.index, b.failWith
}

func (b *fake) PutQueues(_ context.Context, r api.QueuesRequest) error {
	for _, name := range r.Remove {
		if name != "nlp" && name != "short" {
			return notFound("queue", name)
		}
	}
	b.change(func() { b.writes = append(b.writes, "queues") })
	return nil
}

func (b *fake) PauseQueue(_ context.Context, name, reason string) error {
	if name != "nlp" && name != "short" {
		return notFound("queue", name)
	}
	b.change(func() { b.writes = append(b.writes, "pause "+name+": "+reason) })
	return nil
}

func (b *fake) QueueOrder(_ context.Context, name string) ([]api.OrderRow, uint64, error) {
	if name != "" && name != "nlp" && name != "short" {
		return nil, 0, notFound("queue", name)
	}
	return []api.OrderRow{{Position: 1, Group: "z"}, {Position: 2, Group: "a"}}, b.index, b.failWith
}

func (b *fake) Usage(_ context.Context, by string, since time.Time) ([]api.UsageRow, uint64, error) {
	return []api.UsageRow{{Of: by + since.Format("15:04"), GPUSeconds: 9}}, b.index, b.failWith
}

func (b *fake) Outlook(_ context.Context, s api.JobSpec) (api.Outlook, error) {
	return api.Outlook{Starts: true, Ranks: s.Ranks, Answer: "It would start now."}, b.failWith
}

func (b *fake) Declared(context.Context) (api.Declared, error) {
	return api.Declared{Reservations: []api.ReservationStatus{}, Capacities: []api.CapacityStatus{}, Levels: []api.Level{}, Links: []api.Link{}, Index: b.index}, b.failWith
}

func (b *fake) did(what string) error {
	b.change(func() { b.writes = append(b.writes, what) })
	return nil
}

func (b *fake) PutReservation(_ context.Context, r api.ReservationRequest) error {
	return b.did("reservation " + r.Name)
}

func (b *fake) RemoveReservation(_ context.Context, name string, _ uint64) error {
	return b.did("no reservation " + name)
}

func (b *fake) PutCapacity(_ context.Context, r api.CapacityRequest) error {
	return b.did("capacity " + r.Name)
}

func (b *fake) RemoveCapacity(_ context.Context, name string, _ uint64) error {
	return b.did("no capacity " + name)
}
func (b *fake) PutTopology(context.Context, api.TopologyRequest) error { return b.did("topology") }
func (b *fake) PutLinks(context.Context, api.LinksRequest) error       { return b.did("links") }

func (b *fake) parked(ctx context.Context, job, what string) (api.Job, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return j, err
	}
	return j, b.did(what + " " + j.ID)
}

func (b *fake) HoldJob(ctx context.Context, job, _ string) (api.Job, error) {
	return b.parked(ctx, job, "hold")
}

func (b *fake) ReleaseJob(ctx context.Context, job, _ string) (api.Job, error) {
	return b.parked(ctx, job, "release")
}

func (b *fake) SuspendJob(ctx context.Context, job string, d time.Duration, _ string) (api.Job, error) {
	return b.parked(ctx, job, "suspend "+d.String())
}

func (b *fake) ResumeJob(ctx context.Context, job, _ string) (api.Job, error) {
	return b.parked(ctx, job, "resume")
}

func (b *fake) EditJob(ctx context.Context, job string, _ api.EditRequest) (api.Job, error) {
	return b.parked(ctx, job, "edit")
}

func (b *fake) Requeue(ctx context.Context, job string, key Idempotency) (Made, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return Made{}, err
	}
	if key.Key == "no" {
		return Made{}, errors.New("not now")
	}
	return Made{ID: j.ID, Index: b.index}, b.did("requeue " + j.ID)
}
