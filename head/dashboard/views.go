package dashboard

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// panel is one part of a page that can have no data: it says why instead of showing
// numbers that nobody vouches for.
type panel[T any] struct {
	Rows   []T
	More   int    // rows that are not shown
	NoData string // why there are none; "" when there are
	AsOf   time.Time
}

func fill[T any](p *Page, r *http.Request, rows []T, err error, limit int) panel[T] {
	out := panel[T]{AsOf: p.now().UTC()}
	if err != nil {
		out.NoData = asProblem(r.Context(), p.log, err).Detail
		return out
	}
	if len(rows) > limit {
		out.More = len(rows) - limit
		rows = rows[:limit]
	}
	out.Rows = rows
	return out
}

// tally is one word with its number.
type tally struct {
	State string
	N     int64
}

// tallies lists the states in an order that never changes under the reader's eye.
func tallies(m map[string]int64) []tally {
	out := make([]tally, 0, len(m))
	for state, n := range m {
		out = append(out, tally{state, n})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].State < out[j].State })
	return out
}

// bar compares what there is with what is held, asked for and used.
type bar struct {
	Kind      string
	Capacity  string
	Allocated string
	Waiting   string
	Used      string // "no data" when no source tells
	Width     int64  // of the allocated part, in percent
	None      bool   // there is none of it
}

type overviewBody struct {
	Status  *api.Status
	NoData  string
	Nodes   []tally
	Jobs    []tally
	Groups  []tally
	Bars    []bar
	Blocked panel[jobRow]
	Events  panel[api.Event]
}

func (p *Page) overview(r *http.Request) (any, error) {
	ctx := r.Context()
	body := overviewBody{}
	status, err := p.r.Status(ctx)
	if err != nil {
		body.NoData = asProblem(ctx, p.log, err).Detail
	} else {
		body.Status = &status
		body.Nodes, body.Jobs, body.Groups = tallies(status.Nodes), tallies(status.Jobs), tallies(status.Groups)
		groups, _, gerr := p.r.Groups(ctx)
		nodes, _, nerr := p.r.Nodes(ctx)
		body.Bars = bars(status, groups, gerr == nil, nodes, nerr == nil)
	}
	jobs, _, err := p.r.Jobs(ctx)
	blocked := slices.DeleteFunc(slices.Clone(jobs), func(j api.Job) bool { return j.State.Terminal() || j.State == api.Running })
	body.Blocked = fill(p, r, rowsOf(blocked), err, 10)
	events, err := p.r.LastEvents(ctx, "", fewEvents)
	body.Events = fill(p, r, newestFirst(events), err, fewEvents)
	return body, nil
}

// bars adds up requested, allocated and used; a sum with an unknown part is unknown.
func bars(s api.Status, groups []api.Group, groupsKnown bool, nodes []api.Node, nodesKnown bool) []bar {
	var waiting api.Resources
	for _, g := range groups {
		if g.State != api.GroupPending {
			continue
		}
		for _, b := range g.Spec.Bundles {
			waiting.CPU += b.CPU
			waiting.Memory += b.Memory
			waiting.GPUs += b.GPUs
			waiting.GPUMemory += b.GPUMemory
		}
	}
	var total, used int64
	known, devices := nodesKnown, 0
	for _, n := range nodes {
		for _, g := range n.GPUs {
			devices++
			total += g.Usable
			if g.Used == nil {
				known = false
				continue
			}
			used += *g.Used
		}
	}
	one := func(kind string, capacity, allocated, asked int64) bar {
		b := bar{Kind: kind, Capacity: amount(kind, capacity), Allocated: amount(kind, allocated), Waiting: "no data", Used: "no data", None: capacity == 0}
		if groupsKnown {
			b.Waiting = amount(kind, asked)
		}
		if capacity > 0 {
			b.Width = min(100, max(0, allocated)*100/capacity)
		}
		return b
	}
	out := []bar{
		one("CPU", int64(s.Capacity.CPU), int64(s.Allocated.CPU), int64(waiting.CPU)),
		one("Memory", int64(s.Capacity.Memory), int64(s.Allocated.Memory), int64(waiting.Memory)),
		one("GPUs", s.Capacity.GPUs, s.Allocated.GPUs, waiting.GPUs),
	}
	memory := one("GPU memory", total, int64(s.Allocated.GPUMemory), int64(waiting.GPUMemory))
	if known && devices > 0 {
		memory.Used = amount("GPU memory", used)
	}
	memory.None = devices == 0
	return append(out, memory)
}

type nodeRow struct {
	api.Node
	Capacity, Allocated string
	Devices             []deviceRow
	Wrong               []api.Condition
}

type deviceRow struct {
	api.GPU
	UsableText, UsedText string
}

type nodesBody struct{ panel[nodeRow] }

func (p *Page) nodes(r *http.Request) (any, error) {
	nodes, _, err := p.r.Nodes(r.Context())
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b api.Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	rows := make([]nodeRow, 0, len(nodes))
	for _, n := range nodes {
		row := nodeRow{Node: n, Capacity: needs(n.Capacity), Allocated: needs(n.Allocated)}
		for _, g := range n.GPUs {
			d := deviceRow{GPU: g, UsableText: amount("GPU memory", g.Usable), UsedText: "no data"}
			if g.Used != nil {
				d.UsedText = amount("GPU memory", *g.Used)
			}
			row.Devices = append(row.Devices, d)
		}
		for _, c := range n.Conditions {
			if c.Message != "" {
				row.Wrong = append(row.Wrong, c)
			}
		}
		rows = append(rows, row)
	}
	return nodesBody{fill(p, r, rows, err, maxRows)}, nil
}

type groupRow struct {
	api.Group
	Needs string
	Nodes string
}

type groupsBody struct{ panel[groupRow] }

func (p *Page) groups(r *http.Request) (any, error) {
	groups, _, err := p.r.Groups(r.Context())
	groups = slices.Clone(groups)
	slices.SortStableFunc(groups, func(a, b api.Group) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) })
	rows := make([]groupRow, 0, len(groups))
	for _, g := range groups {
		rows = append(rows, groupRow{Group: g, Needs: bundles(g.Spec.Bundles), Nodes: strings.Join(placedOn(g.Bundles), ", ")})
	}
	return groupsBody{fill(p, r, rows, err, maxRows)}, nil
}

// bundles folds equal bundles into one line.
func bundles(list []api.Bundle) string {
	var parts []string
	for i := 0; i < len(list); {
		j, text := i, needs(list[i].Resources)
		for j < len(list) && needs(list[j].Resources) == text {
			j++
		}
		if len(parts) == 4 {
			return strings.Join(parts, "; ") + "; …"
		}
		parts = append(parts, amount("", int64(j-i))+" × ("+text+")")
		i = j
	}
	return strings.Join(parts, "; ")
}

func placedOn(placed []api.Placed) []string {
	var out []string
	for _, b := range placed {
		if !slices.Contains(out, b.Node) {
			out = append(out, b.Node)
		}
	}
	sort.Strings(out)
	return out
}

type jobRow struct {
	api.Job
	Ranks int64
	Took  string
}

type jobsBody struct{ panel[jobRow] }

func (p *Page) jobs(r *http.Request) (any, error) {
	jobs, _, err := p.r.Jobs(r.Context())
	rows := rowsOf(jobs)
	for i := range rows {
		rows[i].Took = took(p.now(), rows[i].Started, rows[i].Ended)
	}
	return jobsBody{fill(p, r, rows, err, maxRows)}, nil
}

func rowsOf(jobs []api.Job) []jobRow {
	rows := make([]jobRow, 0, len(jobs))
	for _, j := range jobs {
		rows = append(rows, jobRow{Job: j, Ranks: max(1, j.Spec.Ranks)})
	}
	slices.SortStableFunc(rows, func(a, b jobRow) int { return cmp.Compare(b.ULID, a.ULID) })
	return rows
}

type attemptRow struct {
	api.Attempt
	Took string
}

type jobBody struct {
	api.Job
	Ranks       int64
	Needs       string
	Took        string
	Exit        string
	Command     string
	Attempts    []attemptRow // the newest first
	Time        []partRow
	Useful      string
	Events      panel[api.Event]
	Checkpoints panel[checkpointRow]
	// Of what waits: where it stands, what is in its way, and what would let it start.
	Why     *api.Why
	Blocked []*reasonView
	NoWhy   string
	WhatIf  bool
	TryURL  string
}

// partRow is one part of a job's time.
type partRow struct{ Name, Time, Share string }

// timeRows says where a job's time went; what took none is left out.
func timeRows(g *api.Goodput) (rows []partRow, useful string) {
	if g == nil || g.Wall <= 0 {
		return nil, ""
	}
	for _, p := range g.Parts() {
		if p.Time > 0 {
			rows = append(rows, partRow{p.Name, roundTime(p.Time.D()), percent(float64(p.Time) / float64(g.Wall))})
		}
	}
	return append(rows, partRow{"wall", roundTime(g.Wall.D()), percent(1)}), percent(g.Ratio)
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + " %" }

func roundTime(d time.Duration) string {
	if d < time.Minute {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

type checkpointRow struct {
	api.Checkpoint
	Size string
}

func (b jobBody) title() string { return "Job " + b.ID }

func (p *Page) job(r *http.Request) (any, error) {
	ctx := r.Context()
	job, err := p.r.Job(ctx, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	body := jobBody{
		Job: job, Ranks: max(1, job.Spec.Ranks), Needs: needs(job.Spec.Resources),
		Took: took(p.now(), job.Started, job.Ended), Exit: "none yet", Command: strings.Join(job.Spec.Command, " "),
	}
	if job.ExitCode != nil {
		body.Exit = amount("", *job.ExitCode)
	}
	if !job.State.Terminal() && job.State != api.Running {
		p.explain(r, &body)
	}
	body.Time, body.Useful = timeRows(job.Goodput)
	for _, a := range slices.Backward(job.Attempts) {
		body.Attempts = append(body.Attempts, attemptRow{a, took(p.now(), a.Created, a.Ended)})
	}
	events, err := p.r.LastEvents(ctx, "job/"+job.ID, maxEvents)
	body.Events = fill(p, r, newestFirst(events), err, maxEvents)
	checkpoints, _, err := p.r.Checkpoints(ctx, job.Run)
	rows := make([]checkpointRow, 0, len(checkpoints))
	for _, c := range checkpoints {
		rows = append(rows, checkpointRow{c, amount("Memory", c.Bytes)})
	}
	slices.SortStableFunc(rows, func(a, b checkpointRow) int { return cmp.Compare(b.Step, a.Step) })
	body.Checkpoints = fill(p, r, rows, err, 50)
	return body, nil
}

// explain says what a job that does not run waits for.
func (p *Page) explain(r *http.Request, body *jobBody) {
	ctx, query := r.Context(), r.URL.Query()
	var whatIf []string
	if body.WhatIf = query.Get("what-if") == "any"; body.WhatIf {
		whatIf = []string{"any"}
	}
	query.Set("what-if", "any")
	body.TryURL = address(url.PathEscape(body.ID), query)
	why, err := p.r.Why(ctx, "job/"+body.ID, whatIf...)
	if err != nil {
		body.NoWhy = asProblem(ctx, p.log, err).Detail
		return
	}
	queues, _, _ := p.r.Queues(ctx) // without them the names of queues are no links
	links := newLinker(p, r, queues)
	for i := range why.Reasons {
		body.Blocked = append(body.Blocked, links.view(&why.Reasons[i]))
	}
	body.Why = &why
}

type actorsBody struct{ panel[api.Actor] }

func (p *Page) actors(r *http.Request) (any, error) {
	actors, _, err := p.r.Actors(r.Context())
	actors = slices.Clone(actors)
	slices.SortStableFunc(actors, func(a, b api.Actor) int { return cmp.Compare(a.ID, b.ID) })
	return actorsBody{fill(p, r, actors, err, maxRows)}, nil
}

type eventsBody struct{ Panel panel[api.Event] }

func (p *Page) events(r *http.Request) (any, error) {
	events, err := p.r.LastEvents(r.Context(), "", maxEvents)
	return eventsBody{fill(p, r, newestFirst(events), err, maxEvents)}, nil
}

func newestFirst(events []api.Event) []api.Event {
	out := slices.Clone(events)
	slices.Reverse(out)
	return out
}
