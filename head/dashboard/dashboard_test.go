package dashboard

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// reader answers with what it is given, or not at all.
type reader struct {
	status   api.Status
	nodes    []api.Node
	groups   []api.Group
	jobs     []api.Job
	job      api.Job
	queues   []api.QueueStatus
	order    []api.OrderRow
	declared api.Declared
	why      api.Why
	broken   map[string]bool
}

var errBroken = errors.New("the inner cause")

func (r *reader) err(what string) error {
	if r.broken[what] {
		return errBroken
	}
	return nil
}

func (r *reader) Status(context.Context) (api.Status, error) { return r.status, r.err("status") }
func (r *reader) Jobs(context.Context) ([]api.Job, uint64, error) {
	return r.jobs, 1, r.err("jobs")
}
func (r *reader) Job(context.Context, string) (api.Job, error) { return r.job, r.err("jobs") }
func (r *reader) Groups(context.Context) ([]api.Group, uint64, error) {
	return r.groups, 1, r.err("groups")
}

func (r *reader) Nodes(context.Context) ([]api.Node, uint64, error) {
	return r.nodes, 1, r.err("nodes")
}

func (r *reader) Actors(context.Context) ([]api.Actor, uint64, error) { return nil, 1, r.err("actors") }

func (r *reader) Checkpoints(context.Context, string) ([]api.Checkpoint, uint64, error) {
	return nil, 1, r.err("checkpoints")
}

func (r *reader) LastEvents(context.Context, string, int) ([]api.Event, error) {
	return nil, r.err("events")
}

func (r *reader) Queues(context.Context) ([]api.QueueStatus, uint64, error) {
	return r.queues, 1, r.err("queues")
}

func (r *reader) QueueOrder(_ context.Context, name string) ([]api.OrderRow, uint64, error) {
	if name == "gone" {
		return nil, 0, &api.Problem{Title: "Not Found", Status: 404, Code: "TRP-A404", Detail: "there is no queue gone"}
	}
	return r.order, 1, r.err("order")
}

func (r *reader) Declared(context.Context) (api.Declared, error) {
	return r.declared, r.err("declared")
}

func (r *reader) Why(_ context.Context, _ string, whatIf ...string) (api.Why, error) {
	w := r.why
	if len(whatIf) == 0 {
		w.Alternatives = nil
	}
	return w, r.err("why")
}
func (r *reader) Version() api.Version { return api.Version{Version: "9.9.9"} }

var noon = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)

func render(t *testing.T, r *reader, path string) (int, string) {
	t.Helper()
	p, err := New(Options{Reader: r, Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range p.Handlers() {
		mux.Handle("GET "+pattern, h)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

func TestNoDataIsNotZero(t *testing.T) {
	r := &reader{
		status: api.Status{Capacity: api.Resources{CPU: 8000, GPUs: 2}},
		nodes:  []api.Node{{Name: "a", GPUs: []api.GPU{{Usable: 1 << 30, Used: new(int64)}, {Usable: 1 << 30}}}},
	}
	row := func(html, kind string) string {
		_, rest, _ := strings.Cut(html, `<th scope="row">`+kind+`</th>`)
		line, _, _ := strings.Cut(rest, "</tr>")
		return line
	}
	_, html := render(t, r, "/ui/")
	if got := row(html, "GPU memory"); !strings.Contains(got, "no data") {
		t.Errorf("one device does not tell its use, and the sum is shown: %s", got)
	}
	if got := row(html, "GPUs"); !strings.Contains(got, `<td class="n">0</td>`) {
		t.Errorf("a known zero is not shown: %s", got)
	}
	r.nodes[0].GPUs[1].Used = new(int64)
	_, html = render(t, r, "/ui/")
	if got := row(html, "GPU memory"); strings.Contains(got, "no data") {
		t.Errorf("all devices tell: %s", got)
	}
	r.nodes, r.status.Capacity.GPUs = nil, 0
	_, html = render(t, r, "/ui/")
	if got := row(html, "GPUs"); !strings.Contains(got, "none in this cluster") {
		t.Errorf("a cluster without GPUs: %s", got)
	}
	r.broken = map[string]bool{"groups": true}
	_, html = render(t, r, "/ui/")
	if got := row(html, "CPU"); !strings.Contains(got, `<td class="n none">no data</td>`) {
		t.Errorf("what waits is not known: %s", got)
	}
}

func TestAPartThatFailsSaysSo(t *testing.T) {
	for what, pages := range map[string][]string{
		"status": {"/ui/"}, "jobs": {"/ui/", "/ui/jobs"}, "nodes": {"/ui/nodes"}, "groups": {"/ui/placement-groups"},
		"queues": {"/ui/queue"}, "order": {"/ui/queue"}, "declared": {"/ui/queue"}, "why": {"/ui/jobs/x"},
		"actors": {"/ui/actors"}, "events": {"/ui/", "/ui/events"},
	} {
		for _, page := range pages {
			code, html := render(t, &reader{broken: map[string]bool{what: true}}, page)
			if code != 200 || !strings.Contains(html, "<strong>No data.</strong>") {
				t.Errorf("%s without %s: %d", page, what, code)
			}
			if strings.Contains(html, errBroken.Error()) {
				t.Errorf("%s tells the inner cause", page)
			}
		}
	}
	if code, html := render(t, &reader{broken: map[string]bool{"jobs": true}}, "/ui/jobs/x"); code != 503 || !strings.Contains(html, "TRP-D001") {
		t.Errorf("a job that cannot be read: %d", code)
	}
}

func TestCutRowsAreCounted(t *testing.T) {
	_, html := render(t, &reader{jobs: make([]api.Job, maxRows+12)}, "/ui/jobs")
	if !strings.Contains(html, "12 older jobs are not shown") || strings.Count(html, `<th scope="row" class="name">`) != maxRows {
		t.Error("rows were cut silently")
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "now", 0: "now", 59 * time.Second: "59 s ago", time.Hour - 1: "59 min ago", 47 * time.Hour: "47 h ago", 50 * time.Hour: "2 d ago",
	} {
		if got := ago(noon, noon.Add(-d)); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	if ago(noon, time.Time{}) != "never" || clock(time.Time{}) != "no data" || step(nil) != "none yet" || step(new(int64)) != "0" {
		t.Error("absent values look like values")
	}
	same := api.Bundle{Resources: api.Resources{CPU: 1500, Memory: unit.GiB}}
	if got := bundles([]api.Bundle{same, same, {}}); got != "2 × (1.5 CPU, 1.0 GiB); 1 × (nothing)" {
		t.Errorf("bundles: %q", got)
	}
	for _, s := range []api.JobState{
		api.Queued, api.Reserved, api.Starting, api.Running, api.Recovering, api.Draining, api.Held, api.Suspended,
		api.Stopping, api.Succeeded, api.Failed, api.Stopped, api.Preempted,
	} {
		if final := tone(string(s)) == "done" || tone(string(s)) == "bad"; final != s.Terminal() {
			t.Errorf("%s looks final: %v", s, final)
		}
	}
	for path, want := range map[string]string{"/ui/": "./", "/ui/x": "./", "/ui/a/b": "../", "/x": "./ui/", "/a/b/c": "../../ui/", "/": "./ui/"} {
		if got := base(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("base of %s: %q, want %q", path, got, want)
		}
	}
}

// TestContrast computes WCAG 2.2's contrast of every pair of colours that the style
// sheet lets meet, in both schemes.
func TestContrast(t *testing.T) {
	css, err := files.ReadFile("static/style.css")
	if err != nil {
		t.Fatal(err)
	}
	schemes := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(css), -1)
	if len(schemes) != 2 {
		t.Fatalf("%d schemes", len(schemes))
	}
	for i, scheme := range schemes {
		colour := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z]+): #([0-9a-f]{6})`).FindAllStringSubmatch(scheme[1], -1) {
			colour[m[1]] = luminance(t, m[2])
		}
		for _, ground := range []string{"ground", "paper", "stripe", "alarm"} {
			for _, text := range []string{"ink", "quiet", "link", "good", "bad", "warn", "held"} {
				if c := contrast(colour[text], colour[ground]); c < 4.5 {
					t.Errorf("scheme %d: %s on %s has %.2f, want 4.5", i, text, ground, c)
				}
			}
		}
		for _, pair := range [][2]string{{"bar", "track"}, {"bar", "paper"}, {"focus", "ground"}, {"focus", "paper"}, {"bad", "alarm"}} {
			if c := contrast(colour[pair[0]], colour[pair[1]]); c < 3 {
				t.Errorf("scheme %d: %s on %s has %.2f, want 3", i, pair[0], pair[1], c)
			}
		}
	}
}

func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	linear := func(c uint64) float64 {
		v := float64(c&0xff) / 255
		if v <= 0.04045 {
			return v / 12.92
		}
		return math.Pow((v+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(n>>16) + 0.7152*linear(n>>8) + 0.0722*linear(n)
}

func contrast(a, b float64) float64 { return (math.Max(a, b) + 0.05) / (math.Min(a, b) + 0.05) }

// TestWhereTheTimeWent: the parts of a job's time stand on its page, and none for a job
// of which nothing is known.
func TestWhereTheTimeWent(t *testing.T) {
	rows, useful := timeRows(&api.Goodput{
		Wall: unit.Duration(200 * time.Second), Ratio: 0.75, Useful: unit.Duration(150 * time.Second), Lost: unit.Duration(50 * time.Second),
	})
	want := []partRow{{"useful", "2m30s", "75.0 %"}, {"lost", "50s", "25.0 %"}, {"wall", "3m20s", "100.0 %"}}
	if useful != "75.0 %" || !slices.Equal(rows, want) {
		t.Errorf("%q %+v", useful, rows)
	}
	for _, g := range []*api.Goodput{nil, {}} {
		if rows, _ := timeRows(g); rows != nil {
			t.Errorf("%+v", rows)
		}
	}
	r := &reader{job: api.Job{ID: "a", State: api.Running, Goodput: &api.Goodput{Wall: 1e9, Useful: 1e9, Ratio: 1}, Excluded: []api.Excluded{{Node: "<n7>", Why: "it failed", Until: noon}}}}
	if code, text := render(t, r, "/ui/jobs/a"); code != 200 || !strings.Contains(text, "100.0 % of the time") || !strings.Contains(text, "&lt;n7&gt; until") {
		t.Errorf("%d %s", code, text)
	}
}
