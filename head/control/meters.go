package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxMetered bounds the jobs that have series of their own.
const maxMetered = 1000

// Bounds of the buckets, in seconds.
var (
	recoveryBounds = []float64{0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800}
	waitBounds     = []float64{0.1, 1, 10, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600}
)

// meters sum up what this leader has seen happen. They begin anew with it, as the
// counters of a process do; where one job's time went is in the log.
type meters struct {
	mu       sync.Mutex
	seen     map[string]metered
	lost     map[string]float64
	recovery map[string]*headapi.Histogram
	wait     map[string]*headapi.Histogram
}

// metered is what of a job has been counted: up to which generation.
type metered struct {
	lost, recovered uint64
	waited          bool
}

// lead begins anew: what has happened before was counted by others.
func (m *meters) lead(v *state.View, now time.Time) {
	m.mu.Lock()
	m.seen, m.lost = map[string]metered{}, map[string]float64{}
	m.recovery, m.wait = map[string]*headapi.Histogram{}, map[string]*headapi.Histogram{}
	m.mu.Unlock()
	for _, j := range v.LiveJobs() {
		m.watch(j, v.PlanJob(j), now, false)
	}
}

// watch counts what is new of a job.
func (m *meters) watch(j *state.Job, p plan.Job, now time.Time, count bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.seen[j.ID]
	over := j.State.Terminal()
	if len(j.Attempts) > 0 && !s.waited {
		s.waited = true
		if first := p.Attempts[0]; count && !first.Placed.IsZero() {
			observe(m.wait, j.Spec.Queue, waitBounds, first.Placed.Sub(p.Submitted))
		}
	}
	var each []plan.Parts
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if a.Generation > s.recovered {
			if d, ok := p.Recovery(i); ok {
				s.recovered = a.Generation
				if count {
					observe(m.recovery, causeWord(j.Attempts[i-1].Cause), recoveryBounds, d)
				}
			}
		}
		settled := over || i+1 < len(j.Attempts) && j.Attempts[i+1].Pace.First != 0
		if a.Ended == 0 || a.Generation <= s.lost || !settled {
			continue
		}
		s.lost = a.Generation
		if each == nil {
			_, each = plan.Account(p, now)
		}
		if count {
			m.lost[causeWord(a.Cause)] += each[i].Lost.Seconds()
		}
	}
	m.seen[j.ID] = s
	if over {
		delete(m.seen, j.ID)
	}
}

func causeWord(c api.Cause) string {
	if c == api.CauseNone {
		return "none"
	}
	return string(c)
}

func observe(into map[string]*headapi.Histogram, label string, bounds []float64, d time.Duration) {
	h := into[label]
	if h == nil {
		h = &headapi.Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds))}
		into[label] = h
	}
	x := max(0, d.Seconds())
	h.Count++
	h.Sum += x
	for i, b := range bounds {
		if x <= b {
			h.Counts[i]++
		}
	}
}

// meter looks at every live job once.
func (h *Head) meter() {
	v := h.Store.View()
	now := h.Clock.Now()
	for _, j := range v.LiveJobs() {
		h.meters.watch(j, h.planJob(v, j), now, true)
	}
}

// Measures is what /metrics tells.
func (h *Head) Measures(ctx context.Context) (headapi.Measures, error) {
	v := h.Store.View()
	status, err := h.Status(ctx)
	if err != nil {
		return headapi.Measures{}, err
	}
	out := headapi.Measures{Status: status, GPUs: map[string]int64{}, Pending: map[headapi.QueueReason]int64{}}
	now := h.Clock.Now()
	live := v.LiveJobs()
	for _, j := range live {
		if j.State != api.Queued {
			continue
		}
		reason := "none"
		if rs := h.reasonsFor(v, j.Group); len(rs) > 0 {
			reason = string(rs[0].Code)
		}
		out.Pending[headapi.QueueReason{Queue: j.Spec.Queue, Reason: reason}]++
	}
	for _, j := range live[max(0, len(live)-maxMetered):] {
		m := headapi.JobMeasures{Job: j.ID, Goodput: h.goodput(v, j)}
		if last := j.Last(); last != nil && last.Pace.Kept != nil {
			if c := v.NewestCommitted(j.Run()); c != nil {
				age := max(0, now.Sub(time.Unix(0, c.Committed)).Seconds())
				m.CheckpointAge = &age
			}
		}
		out.Jobs = append(out.Jobs, m)
	}
	for _, n := range v.Nodes() {
		u := v.UseOf(n.ID)
		devices := h.nodes.devices(n.ID)
		for _, g := range n.Info.GPUs {
			switch d := u.Devices[g.UUID]; {
			case n.State == api.NodeLost:
				out.GPUs["lost"]++
			case !survey.Healthy(g.Health, devices[g.UUID].Health):
				out.GPUs["unhealthy"]++
			case d.Whole || d.Share > 0:
				out.GPUs["busy"]++
			default:
				out.GPUs["free"]++
			}
		}
	}
	h.meters.mu.Lock()
	defer h.meters.mu.Unlock()
	out.Lost = map[string]float64{}
	maps.Copy(out.Lost, h.meters.lost)
	out.Recovery, out.QueueWait = copied(h.meters.recovery), copied(h.meters.wait)
	return out, nil
}

func copied(in map[string]*headapi.Histogram) map[string]headapi.Histogram {
	out := make(map[string]headapi.Histogram, len(in))
	for k, h := range in {
		c := *h
		c.Counts = slices.Clone(h.Counts)
		out[k] = c
	}
	return out
}
