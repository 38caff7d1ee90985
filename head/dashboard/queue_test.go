package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

const evil = `<img src=x onerror=alert(1)>`

func gpus(n int64) api.Amounts { return api.Amounts{{Of: "gpu", N: 1000 * n}} }

func busyQueue() *reader {
	weight := int64(3)
	return &reader{
		job: api.Job{ID: "a-1", State: api.Running},
		queues: []api.QueueStatus{
			{Queue: api.Queue{Name: "nlp", Tenant: true, Guaranteed: gpus(8), Limit: gpus(12), Lend: gpus(2)}, Charged: gpus(10), Used: 7_200_000, Pending: 2, Waits: unit.Duration(90 * time.Second), Parked: 1},
			{Queue: api.Queue{Name: "short", Parent: "nlp", Order: "short"}},
			{Queue: api.Queue{Name: "vision", Tenant: true, Guaranteed: gpus(4).With("memory", 1<<30), Weight: &weight, Paused: evil}, Used: 21_600_000},
			{Queue: api.Queue{Name: "cv", Parent: "vision"}},
		},
		order: []api.OrderRow{
			{
				Position: 1, Name: "a-1", User: evil, Tenant: "nlp", Queue: "short", Need: gpus(2), Since: noon.Add(-3 * time.Minute), Expect: unit.Duration(2 * time.Hour),
				Start:   noon.Add(30 * time.Minute),
				Planned: &api.Planned{Start: noon.Add(30 * time.Minute), Nodes: []string{"n1", "n2", "n3", "n4", "n5"}, Assumptions: []string{"b-2 ends by then", "more"}},
				Reason:  &api.Reason{Text: "held by a-1, a-11 of cv", Blockers: []string{"a-1", "a-11", "cv", "pg-9"}, MoreBlockers: 7, Frees: evil, When: noon.Add(time.Hour)},
			},
			{Position: 2, Name: evil, Tenant: "default", Queue: "default"},
		},
		declared: api.Declared{
			Reservations: []api.ReservationStatus{
				{Reservation: api.Reservation{Name: "later", Start: noon.Add(time.Hour), End: noon.Add(2 * time.Hour), Tenant: "nlp", Count: 1, Level: "rack"}, Has: []string{"n4"}, Lacks: 2},
				{Reservation: api.Reservation{Name: "now", Start: noon, End: noon.Add(time.Hour), Maintenance: evil, Nodes: []string{"n1"}}},
				{Reservation: api.Reservation{Name: "past", Start: noon.Add(-time.Hour), End: noon, Job: "a-1", Count: 2}},
			},
			Capacities: []api.CapacityStatus{
				{Capacity: api.Capacity{Name: "storage", Total: 100, Overhead: 10, Unit: "MiB/s"}, Used: 80},
				{Capacity: api.Capacity{Name: "uplink", Level: "rack", Total: 4}, In: map[string]int64{"r2": 1, "r1": 3}},
			},
			Levels: []api.Level{{Name: "rack", Label: "rack"}}, Scheduler: api.SchedulerPolicy{NoPreempt: true}, HalfLife: unit.Duration(168 * time.Hour),
		},
	}
}

func TestQueuePage(t *testing.T) {
	code, html := render(t, busyQueue(), "/ui/queue")
	if code != 200 {
		t.Fatal(code)
	}
	for what, want := range map[string]string{
		"a link to the job":           `<th scope="row" class="name"><a href="./jobs/a-1">a-1</a>`,
		"blockers with pages":         `held by <a href="./jobs/a-1">a-1</a>, a-11 of <a href="./queue?in=cv">cv</a>`,
		"a blocker that is not named": `Blocked by pg-9 and 7 more.`,
		"when it is to be free":       `, expected <time datetime="2031-05-04T13:00:00Z">2031-05-04 13:00 UTC</time>`,
		"the planned start":           `2031-05-04 12:30 UTC</time> <span class="hint">in 30 min, on n1, n2, n3, n4 and 1 more</span>`,
		"what it rests on":            `if b-2 ends by then`,
		"no plan":                     `not planned`,
		"a wait":                      `<td class="when">3 min</td><td class="when">2 h</td>`,
		"what is held":                `1 held or suspended`,
		"shares of siblings":          `2.0 GPU-h<br><span class="hint">25 % of use, 25 % by weight`,
		"used, guaranteed and so on":  `<td class="n">10</td><td class="n">8</td><td class="n">12</td><td class="n">2</td><td class="n">0</td>`,
		"the quota as words":          `aria-label="10 GPUs in use, 8 guaranteed, limit 12"`,
		"a quota of something else":   `memory: 0 B in use, 1.0 GiB guaranteed`,
		"what can be lent":            `<td class="n">4</td><td class="n">–</td><td class="n">0</td><td class="n">4</td>`,
		"a pause above":               `with vision: &lt;img`,
		"a queue below its tenant":    `class="d1"><a href="queue?in=short">`,
		"whom a reservation is for":   `<td>tenant nlp</td><td>1 node in one rack<br><span class="hint">n4, lacks 2</span></td>`,
		"a capacity":                  `<td class="n">80 MiB/s</td><td class="n">10 MiB/s</td><td class="n">100 MiB/s</td>`,
		"a capacity of each rack":     `<td>rack r1</td><td class="n">3</td>`,
		"the policy":                  `no preemption`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("%s: no %s", what, want)
		}
	}
	if n := strings.Count(html, "paused</span>"); n != 2 {
		t.Errorf("%d are paused, want vision and what is below it", n)
	}
	if strings.Contains(html, "<img src=x") || strings.Count(html, "&lt;img src=x onerror=alert(1)&gt;") < 5 {
		t.Error("words of users are markup, or not shown")
	}
	for _, state := range []string{"active", "planned", "over"} {
		if n := strings.Count(html, "</span> "+state+"</span>"); n != 1 {
			t.Errorf("%d reservations are %s", n, state)
		}
	}
	if i, j := strings.Index(html, ">past<"), strings.Index(html, ">later<"); i < 0 || j < i {
		t.Error("reservations are not in order of time")
	}
	if code, _ := render(t, busyQueue(), "/ui/queue?in=gone"); code != 404 {
		t.Errorf("a queue that is not: %d", code)
	}
	if _, html := render(t, busyQueue(), "/ui/queue?in=nlp&from=1"); !strings.Contains(html, "Only nlp and what is below it") || !strings.Contains(html, `href="queue?from=1&amp;in=nlp&amp;refresh=off"`) {
		t.Error("what was chosen is lost by a pause")
	}
	if _, html := render(t, &reader{}, "/ui/queue"); !strings.Contains(html, "Nothing waits.") || !strings.Contains(html, "troupe queue create") || !strings.Contains(html, "No reservations.") {
		t.Error("an empty queue does not say so")
	}
}

// All that waits can be looked at, a page at a time, whatever the address says.
func TestQueuePages(t *testing.T) {
	r := &reader{}
	for i := range 1000 {
		r.order = append(r.order, api.OrderRow{Position: int64(i + 1), Name: fmt.Sprintf("w-%d", i+1)})
	}
	seen, next := 0, "queue"
	for range 11 {
		_, html := render(t, r, "/ui/"+next)
		seen += strings.Count(html, `<th scope="row" class="name">w-`)
		_, rest, more := strings.Cut(html, `<a href="queue?from=`)
		for more && !strings.Contains(rest[:40], `rel="next"`) {
			_, rest, more = strings.Cut(rest, `<a href="queue?from=`)
		}
		if !more {
			break
		}
		from, _, _ := strings.Cut(rest, `"`)
		next = "queue?from=" + from
	}
	if seen != 1000 || next != "queue?from=901" {
		t.Errorf("%d of 1000 rows, the last page is %s", seen, next)
	}
	for from, want := range map[string]string{"x": "1 to 100 of", "-5": "1 to 100 of", "250": "201 to 300 of", "99999999": "901 to 1000 of", "99999999999999999999": "901 to 1000 of"} {
		if _, html := render(t, r, "/ui/queue?from="+from); !strings.Contains(html, want) {
			t.Errorf("from=%s is not %s", from, want)
		}
	}
}

// What hangs below nothing that is known is shown at the top; a circle is below nothing.
func TestQueueTree(t *testing.T) {
	named := func(name, parent string) api.QueueStatus {
		return api.QueueStatus{Queue: api.Queue{Name: name, Parent: parent}}
	}
	var got []string
	for _, r := range queueTree([]api.QueueStatus{named("b", ""), named("a", "b"), named("orphan", "gone"), named("x", "y"), named("y", "x")}) {
		got = append(got, fmt.Sprintf("%d %s", r.Depth, r.Name))
	}
	if want := []string{"0 b", "1 a", "0 orphan"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLinkedNames(t *testing.T) {
	pages := map[string]string{"a-1": "A", "a": "B", "größe": "C"}
	for text, want := range map[string]string{
		"":                   "",
		"nothing of it":      "nothing of it",
		"a-1":                "[A]",
		"a-11, xa-1, a-1.":   "a-11, xa-1, [A].",
		"a by a-1 and größe": "[B] by [A] and [C]",
		"größen, a_b, a":     "größen, a_b, [B]",
	} {
		var got strings.Builder
		for _, l := range linked(text, pages) {
			if l.Page != "" {
				got.WriteString("[" + l.Page + "]")
			} else {
				got.WriteString(l.Text)
			}
		}
		if got.String() != want {
			t.Errorf("%q: %q, want %q", text, got.String(), want)
		}
	}
}

func TestWhyAJobWaits(t *testing.T) {
	r := &reader{
		job: api.Job{ID: "a-1", State: api.Queued, User: "ann", Tenant: "nlp", Spec: api.JobSpec{Queue: "short"}},
		why: api.Why{
			Position: 3, Planned: &api.Planned{Start: noon.Add(time.Hour), Assumptions: []string{evil}},
			Reasons:      []api.Reason{{Code: api.ReasonFit, Text: "needs more than a-1 leaves", Blockers: []string{"a-1"}}, {Code: api.ReasonQuota, Text: "quota"}},
			Alternatives: []api.Alternative{{Change: "without its level", Now: true}, {Change: "without x", After: []string{"b"}}, {Change: "without y"}, {Change: "without z", Start: noon}},
		},
	}
	_, html := render(t, r, "/ui/jobs/a-1")
	for _, want := range []string{
		"Position 3 in its queue. Planned to start", "in 1 h, if", "&lt;img src=x", "<strong>Fit</strong>", `than <a href="../jobs/a-1">a-1</a> leaves`, "<strong>Quota</strong>",
		`href="a-1?what-if=any"`, `<a href="../queue?in=nlp">nlp</a>, short`, "ann",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("no %s", want)
		}
	}
	_, html = render(t, r, "/ui/jobs/a-1?what-if=any")
	for _, want := range []string{"without its level: it would start now", "without x: it would start once b had left", "without y: it would not start sooner", "without z: it would start about 2031-05-04 12:00 UTC"} {
		if !strings.Contains(html, want) {
			t.Errorf("no %s", want)
		}
	}
	r.job.State = api.Running
	if _, html = render(t, r, "/ui/jobs/a-1"); strings.Contains(html, "Why it waits") {
		t.Error("a job that runs waits for nothing")
	}
	r.job.State, r.why = api.Held, api.Why{Reasons: []api.Reason{{Code: api.ReasonHeld, Text: "held", Frees: "troupe job release a-1"}}}
	if _, html = render(t, r, "/ui/jobs/a-1"); !strings.Contains(html, "Freed by: troupe job release a-1") || strings.Contains(html, "No start is planned") {
		t.Error("a job that is held does not say what lets it go on")
	}
}
