package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Measures is what the head tells a scraper.
type Measures struct {
	Status    api.Status
	Jobs      []JobMeasures // live ones, a bounded number
	GPUs      map[string]int64
	Pending   map[QueueReason]int64
	Lost      map[string]float64 // seconds by cause
	Recovery  map[string]Histogram
	QueueWait map[string]Histogram
}

// QueueReason is why jobs of a queue wait.
type QueueReason struct{ Queue, Reason string }

// JobMeasures are the figures of one live job; CheckpointAge is in seconds, nil before
// the first commit.
type JobMeasures struct {
	Job           string
	Goodput       api.Goodput
	CheckpointAge *float64
}

// Histogram counts values up to each of its bounds.
type Histogram struct {
	Count  uint64
	Sum    float64
	Bounds []float64
	Counts []uint64 // cumulative
}

// Bounds of scrapes: the reading of one, and how many at once.
const (
	scrapeLimit = 5 * time.Second
	maxScrapes  = 4
)

// metric describes one of ours.
func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("troupe_"+name, help, labels, nil)
}

var (
	buildInfo     = metric("build_info", "What this head is; always 1.", "version", "go")
	featureLevel  = metric("feature_level", "Feature level of the cluster.")
	raftIndex     = metric("raft_index", "Newest index of the log that is applied.")
	jobsBy        = metric("jobs", "Jobs that are kept, by state.", "state")
	nodesBy       = metric("nodes", "Nodes, by state.", "state")
	gpusBy        = metric("gpus", "GPUs, by state.", "state")
	pendingJobs   = metric("pending_jobs", "Jobs that wait for resources, by their first reason.", "queue", "reason")
	goodputRatio  = metric("job_goodput_ratio", "Useful share of a live job's time since its submission.", "troupe_job")
	jobSeconds    = metric("job_seconds", "Where a live job's time went; the parts add up to its wall time.", "troupe_job", "part")
	jobRestarts   = metric("job_restarts", "Attempts of a live job after its first.", "troupe_job")
	checkpointAge = metric("checkpoint_age_seconds", "Time since a live job's newest commit.", "troupe_job")
	recoveryTime  = metric("recovery_seconds", "From the end of an attempt to the first step of the next, by what ended it.", "cause")
	lostWork      = metric("lost_work_seconds_total", "Steps that had to be done again, by what ended their attempt.", "cause")
	queueWait     = metric("queue_wait_seconds", "From submission to placement.", "queue")
)

// scrape is one reading of the backend.
type scrape struct {
	Measures
	version api.Version
}

// Describe sends nothing: which series there are depends on the state.
func (scrape) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (x scrape) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, x float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
	}
	gauge(buildInfo, 1, x.version.Version, x.version.Go)
	gauge(featureLevel, float64(x.Status.Level))
	gauge(raftIndex, float64(x.Status.Index))
	for _, by := range []struct {
		desc *prometheus.Desc
		n    map[string]int64
	}{{jobsBy, x.Status.Jobs}, {nodesBy, x.Status.Nodes}, {gpusBy, x.GPUs}} {
		for state, n := range by.n {
			gauge(by.desc, float64(n), state)
		}
	}
	for k, n := range x.Pending {
		gauge(pendingJobs, float64(n), k.Queue, k.Reason)
	}
	for _, j := range x.Jobs {
		g := j.Goodput
		gauge(goodputRatio, g.Ratio, j.Job)
		gauge(jobRestarts, float64(g.Restarts), j.Job)
		for _, p := range g.Parts() {
			gauge(jobSeconds, p.Time.D().Seconds(), j.Job, p.Name)
		}
		if j.CheckpointAge != nil {
			gauge(checkpointAge, *j.CheckpointAge, j.Job)
		}
	}
	for cause, seconds := range x.Lost {
		out <- prometheus.MustNewConstMetric(lostWork, prometheus.CounterValue, seconds, cause)
	}
	for label, h := range x.Recovery {
		out <- h.metric(recoveryTime, label)
	}
	for label, h := range x.QueueWait {
		out <- h.metric(queueWait, label)
	}
}

func (h Histogram) metric(d *prometheus.Desc, label string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.Bounds))
	for i, b := range h.Bounds {
		buckets[b] = h.Counts[i]
	}
	return prometheus.MustNewConstHistogram(d, h.Count, h.Sum, buckets, label)
}

// serveMetrics opens /metrics. Each scrape has a registry of its own: no default
// collectors, nothing of other packages, and a failed reading is a problem like any other.
func (s *server) serveMetrics() {
	busy := make(chan struct{}, maxScrapes)
	s.handle(http.MethodGet, "/metrics", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			p, after := access.RetryLater(http.StatusServiceUnavailable, access.CodeRate, "too many scrapes at once", time.Second)
			access.SetRetryAfter(w.Header(), after)
			access.WriteProblem(w, r, p)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), scrapeLimit)
		defer cancel()
		m, err := s.b.Measures(ctx)
		if err != nil {
			if p, ok := errors.AsType[*Problem](s.problem(r.Context(), err)); ok {
				access.WriteProblem(w, r, &p.Problem)
			}
			return
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(scrape{m, s.b.Version()})
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	}))
}
