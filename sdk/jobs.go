package troupe

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// SubmitJob queues a job. key makes a repeat answer with the first one's job; empty
// draws a fresh key, which still protects against a lost answer.
func (c *Client) SubmitJob(ctx context.Context, spec api.JobSpec, key string) (api.Job, error) {
	if key == "" {
		var err error
		if key, err = NewKey(); err != nil {
			return api.Job{}, err
		}
	}
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs", body: spec, key: key}, &j)
	return j, err
}

// Jobs lists the newest limit jobs, all when limit is 0.
func (c *Client) Jobs(ctx context.Context, limit int) (api.List[api.Job], error) {
	return list[api.Job](ctx, c, "/api/v1/jobs", nil, limit)
}

// Job by id or unique prefix.
func (c *Client) Job(ctx context.Context, id string) (api.Job, error) {
	var j api.Job
	return j, c.get(ctx, "/api/v1/jobs/"+seg(id), nil, &j)
}

// NextJob returns the job once it has changed after index, or unchanged after about
// 25 s; call it again.
func (c *Client) NextJob(ctx context.Context, id string, index uint64) (api.Job, error) {
	var j api.Job
	q := url.Values{"wait": {longPoll.String()}, "minIndex": {strconv.FormatUint(index, 10)}}
	// With an index the head has answered before: an address that refuses now is a head
	// that restarts, and worth waiting for.
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/api/v1/jobs/" + seg(id), query: q, patient: index > 0}, &j)
	return j, err
}

// WaitJob returns when the job is terminal, or in one of the wanted states. onChange,
// if given, sees every change on the way.
func (c *Client) WaitJob(ctx context.Context, id string, onChange func(api.Job), want ...api.JobState) (api.Job, error) {
	var index uint64
	for {
		j, err := c.NextJob(ctx, id, index)
		if err != nil {
			return j, err
		}
		if onChange != nil && j.Index != index {
			onChange(j)
		}
		index = j.Index
		if j.State.Terminal() {
			return j, nil
		}
		if slices.Contains(want, j.State) {
			return j, nil
		}
	}
}

// StopJob ends a job and returns when its processes are gone wherever nodes can be
// reached (P11). A negative grace takes the job's own.
func (c *Client) StopJob(ctx context.Context, id string, grace time.Duration, reason string) (api.Job, error) {
	req := api.StopRequest{Reason: reason}
	if grace >= 0 {
		g := unit.Duration(grace)
		req.Grace = &g
	}
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/stop", body: req}, &j)
	return j, err
}

// DisownJob lets a job go on when the process that owns it ends.
func (c *Client) DisownJob(ctx context.Context, id string) (api.Job, error) {
	var j api.Job
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(id) + "/disown"}, &j)
	return j, err
}

// InjectFault harms a running job on purpose, to see it recover, and says what was done.
func (c *Client) InjectFault(ctx context.Context, job string, r api.FaultRequest) (api.FaultResult, error) {
	var out api.FaultResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(job) + "/faults", body: r, once: true}, &out)
	return out, err
}

// SignalJob sends a signal, as SIGUSR1, to the main process of each rank, or of some.
func (c *Client) SignalJob(ctx context.Context, job, signal string, ranks ...int64) (api.SignalResult, error) {
	var out api.SignalResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(job) + "/signal", body: api.SignalRequest{Signal: signal, Ranks: ranks}, once: true}, &out)
	return out, err
}

// Goodput says where a job's time went.
func (c *Client) Goodput(ctx context.Context, job string) (api.Goodput, error) {
	var g api.Goodput
	return g, c.get(ctx, "/api/v1/jobs/"+seg(job)+"/goodput", nil, &g)
}

// History lists a job's attempts, the oldest first, with what each cost.
func (c *Client) History(ctx context.Context, job string, limit int) (api.List[api.History], error) {
	return list[api.History](ctx, c, "/api/v1/jobs/"+seg(job)+"/history", nil, limit)
}

// Failures lists what failed in a job, the root cause of each attempt first; attempt -1
// is all of them.
func (c *Client) Failures(ctx context.Context, job string, attempt int64, limit int) (api.List[api.FailureRow], error) {
	return list[api.FailureRow](ctx, c, "/api/v1/jobs/"+seg(job)+"/failures", url.Values{"attempt": {strconv.FormatInt(attempt, 10)}}, limit)
}

// Stacks asks the ranks of a job where they stand now.
func (c *Client) Stacks(ctx context.Context, job string) (api.Stacks, error) {
	var s api.Stacks
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/jobs/" + seg(job) + "/stacks"}, &s)
	return s, err
}

// Why explains job/x, pg/x, node/x or a bare id. Each of whatIf is one change of a request
// that waits to look into, as "ranks=8", or "any" for each of its constraints dropped by
// itself.
func (c *Client) Why(ctx context.Context, kind, id string, whatIf ...string) (api.Why, error) {
	var w api.Why
	return w, c.get(ctx, "/api/v1/why/"+seg(kind)+"/"+seg(id), url.Values{"whatIf": whatIf}, &w)
}

// LogPart is a piece of a rank's output.
type LogPart struct {
	Attempt int64
	Start   int64 // offset of Data; behind what was asked for when the head was freed
	Data    []byte
	Size    int64
	End     bool // nothing comes after Start+len(Data) once that equals Size
}

// ReadLog reads a rank's output from an offset; attempt -1 is the newest. With wait
// it waits up to that long, at most 30 s, for something to be there.
func (c *Client) ReadLog(ctx context.Context, job string, rank, attempt int64, stream string, offset int64, wait time.Duration) (LogPart, error) {
	return c.readLog(ctx, job, rank, attempt, stream, offset, wait, false)
}

func (c *Client) readLog(ctx context.Context, job string, rank, attempt int64, stream string, offset int64, wait time.Duration, patient bool) (LogPart, error) {
	q := url.Values{"attempt": {strconv.FormatInt(attempt, 10)}, "stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	var data []byte
	path := fmt.Sprintf("/api/v1/jobs/%s/ranks/%d/log", seg(job), rank)
	h, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q, patient: patient}, &data)
	if err != nil {
		return LogPart{}, err
	}
	p := LogPart{Data: data, End: h.Get(api.HeaderLogEnd) == "true"}
	p.Start = headerInt(h, api.HeaderLogStart)
	p.Size = headerInt(h, api.HeaderLogSize)
	p.Attempt = headerInt(h, "X-Log-Attempt")
	return p, nil
}

func headerInt(h http.Header, name string) int64 {
	n, err := strconv.ParseInt(h.Get(name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// FollowLog writes one stream of one rank of one attempt to w from offset until its
// end, and returns the offset behind the last byte. A lost connection is resumed from
// the byte offset: nothing is missed and nothing repeated. Attempt -1 is the newest when
// there is one, which is waited for.
func (c *Client) FollowLog(ctx context.Context, job string, rank, attempt int64, stream string, offset int64, w func(p []byte) error) (int64, error) {
	for reached := false; ; reached = true {
		p, err := c.readLog(ctx, job, rank, attempt, stream, offset, longPoll, reached)
		if err != nil {
			return offset, err
		}
		if attempt < 0 && p.Attempt >= 0 {
			attempt = p.Attempt // this one to its end, also if another follows
		}
		if len(p.Data) > 0 {
			if err := w(p.Data); err != nil {
				return offset, err
			}
			offset = p.Start + int64(len(p.Data))
		}
		if p.End && offset >= p.Size {
			return offset, nil
		}
	}
}

// Events after seq, oldest first; object ("job/x") may be empty for all.
func (c *Client) Events(ctx context.Context, after uint64, object string, limit int) (api.List[api.Event], error) {
	q := url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(limit)}}
	if object != "" {
		q.Set("object", object)
	}
	var l api.List[api.Event]
	return l, c.get(ctx, "/api/v1/events", q, &l)
}

// Checkpoints of a run or of the run of a job, newest first, with how often it saves.
func (c *Client) Checkpoints(ctx context.Context, run string, limit int) (api.CheckpointList, error) {
	return collect(ctx, c, "/api/v1/checkpoints", url.Values{"run": {run}}, limit, func(p *api.CheckpointList) *api.List[api.Checkpoint] { return &p.List })
}
