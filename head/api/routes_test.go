package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

var update = flag.Bool("update", false, "write the golden files")

// target is an address that a row's pattern matches, with things that exist.
func target(row access.Route) string {
	path := strings.NewReplacer(
		"{$}", "", "{file}", "style.css", "{rank}", "0", "{run}", "digits", "{step}", "40", "{kind}", "job", "{id...}", "digits-7f3k",
		"{hash}", packageHash, "{name}", "nlp",
	).Replace(row.Pattern)
	switch {
	case strings.Contains(path, "placement-groups/"):
		return strings.Replace(path, "{id}", "pg-digits", 1)
	case strings.Contains(path, "nodes/"):
		return strings.Replace(path, "{id}", "alpha", 1)
	case strings.Contains(path, "actors/"):
		return strings.Replace(path, "{id}", "default%2Fcounter", 1)
	}
	return strings.Replace(path, "{id}", "digits-7f3k", 1)
}

// packageHash is of a package that the populated fake has.
var packageHash = strings.Repeat("0123456789abcdef", 4)

// bodyFor is a body that the route takes.
func bodyFor(row access.Route) string {
	switch {
	case strings.HasSuffix(row.Pattern, "/scale"):
		return `{"ranks":2}`
	case row.Kind == access.Upload:
		return "archive"
	case row.Pattern == "/api/v1/jobs" && row.Method == http.MethodPost, row.Pattern == "/api/v1/outlook":
		return `{"name":"new","command":["true"]}`
	case row.Method == http.MethodPut || row.Method == http.MethodPatch:
		return "{}"
	case row.Method != http.MethodPost || row.Kind != access.API:
		return ""
	case row.Pattern == "/api/v1/placement-groups":
		return `{"bundles":[{"cpu":1000}]}`
	case strings.HasSuffix(row.Pattern, "/signal"):
		return `{"signal":"SIGUSR1"}`
	case strings.HasSuffix(row.Pattern, "/export"):
		return `{"folder":"/tmp/x"}`
	case strings.HasSuffix(row.Pattern, "/adopt"):
		return `{"store":"/tmp/x"}`
	case strings.HasSuffix(row.Pattern, "/faults"):
		return `{"fault":"kill-rank","rank":0}`
	}
	return ""
}

// anonymous is written down twice on purpose: opening a route takes two changes.
var anonymous = []string{
	"GET /livez", "GET /readyz", "GET /version",
	"GET /{$}", "GET /ui", "GET /ui/sign-in", "GET /ui/static/{file}",
}

func TestWalkOfAllRoutes(t *testing.T) { // attack 2, P10
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
	var open []string
	for _, row := range access.Table() {
		if row.Anonymous {
			open = append(open, row.Method+" "+row.Pattern)
		}
		submits := strings.HasPrefix(row.Pattern, "/api/v1/packages/") && row.Need == access.Submitter
		if row.Method != http.MethodGet && row.Need < access.Admin && row.Pattern != "/ui/sign-out" && !submits {
			t.Errorf("%s %s changes something and needs only %s", row.Method, row.Pattern, row.Need)
		}
		b := populated()
		s := serverFor(t, b, nil)
		for _, method := range methods {
			isOpen := row.Anonymous && (method == "GET" || method == "HEAD")
			w := ask(s.guard, method, target(row), "", "")
			if isOpen == (w.Code == http.StatusUnauthorized) && row.Pattern != "/ui/sign-in" {
				t.Errorf("%s %s without a token: %d", method, row.Pattern, w.Code)
			}
		}
		if len(b.writes) > 0 {
			t.Errorf("%s: somebody without a token wrote %v", row.Pattern, b.writes)
		}
		if row.Pattern == "/api/v1/events/stream" {
			continue // does not end by itself; TestStream reads it
		}
		// A viewer may read everything but what submitters bring, and change nothing.
		var media []string
		if row.Kind == access.Upload {
			media = []string{"Content-Type", "application/octet-stream"}
		}
		w := ask(s.guard, row.Method, target(row), viewerToken, bodyFor(row), media...)
		switch {
		case submits && w.Code != http.StatusForbidden:
			t.Errorf("%s %s as viewer: %d", row.Method, row.Pattern, w.Code)
		case submits:
		case row.Method == http.MethodGet && w.Code >= 400 && row.Pattern != "/ui/sign-in":
			t.Errorf("%s %s as viewer: %d %s", row.Method, row.Pattern, w.Code, w.Body)
		case row.Method != http.MethodGet && row.Pattern != "/ui/sign-out" && w.Code != http.StatusForbidden:
			t.Errorf("%s %s as viewer: %d", row.Method, row.Pattern, w.Code)
		}
		if len(b.writes) > 0 {
			t.Errorf("%s: a viewer wrote %v", row.Pattern, b.writes)
		}
		if w := ask(s.guard, row.Method, target(row), adminToken, bodyFor(row), media...); w.Code >= 400 && row.Pattern != "/ui/sign-in" {
			t.Errorf("%s %s as admin: %d %s", row.Method, row.Pattern, w.Code, w.Body)
		}
	}
	slices.Sort(open)
	want := slices.Sorted(slices.Values(anonymous))
	if !slices.Equal(open, want) {
		t.Errorf("open routes\n%v\nwant\n%v", open, want)
	}
}

func TestReadsChangeNothing(t *testing.T) { // attack 24
	b := populated()
	s := serverFor(t, b, nil)
	before := b.Index()
	jobs, groups := slices.Clone(b.jobList), slices.Clone(b.groups)
	for _, row := range access.Table() {
		if row.Method == http.MethodGet && row.Pattern != "/api/v1/events/stream" {
			ask(s.guard, "GET", target(row), adminToken, "")
			ask(s.guard, "HEAD", target(row), adminToken, "")
		}
	}
	if b.Index() != before || len(b.writes) > 0 || !reflect.DeepEqual(jobs, b.jobList) || !reflect.DeepEqual(groups, b.groups) {
		t.Errorf("reads changed the state: index %d to %d, %v", before, b.Index(), b.writes)
	}
}

func TestOpenAPIGolden(t *testing.T) {
	s := serverFor(t, populated(), nil)
	got := ask(s.guard, "GET", "/api/openapi.json", viewerToken, "").Body.Bytes()
	path := filepath.Join("testdata", "openapi.json")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the API changed; if it was meant to: go test ./head/api -run OpenAPI -update")
	}
	var doc struct {
		OpenAPI    string `json:"openapi"`
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(got, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || bytes.Contains(got, []byte(`"$schema"`)) {
		t.Errorf("version %q, or $schema is injected", doc.OpenAPI)
	}
	for _, row := range access.Table() {
		path := strings.Replace(row.Pattern, "...", "", 1)
		if !strings.HasPrefix(path, "/api/v1/") {
			continue
		}
		if doc.Paths[path][strings.ToLower(row.Method)] == nil {
			t.Errorf("%s %s is not described", row.Method, path)
		}
	}
	for schema, field := range map[string]string{"Problem": "code", "Job": "placementGroup", "JobSpec": "command", "Bundle": "cpu", "ListJob": "remaining"} {
		if doc.Components.Schemas[schema].Properties[field] == nil {
			t.Errorf("schema %s has no %s", schema, field)
		}
	}
}

func TestAnswersCarryNoSchemaLink(t *testing.T) {
	s := serverFor(t, populated(), nil)
	w := ask(s.guard, "GET", "/api/v1/jobs/digits-7f3k", viewerToken, "")
	if w.Header().Get("Link") != "" || strings.Contains(w.Body.String(), "$schema") {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
	var job api.Job
	if err := json.Unmarshal(w.Body.Bytes(), &job); err != nil || job.ID != "digits-7f3k" || job.State != api.Recovering {
		t.Errorf("%v %+v", err, job)
	}
}

func TestDefectsStayInside(t *testing.T) {
	b := populated()
	b.failWith = os.ErrPermission
	s := serverFor(t, b, nil)
	for _, row := range access.Table() {
		if row.Method != http.MethodGet || row.Anonymous || row.Pattern == "/api/v1/events/stream" {
			continue
		}
		w := ask(s.guard, "GET", target(row), viewerToken, "")
		if strings.Contains(w.Body.String(), "permission") {
			t.Errorf("%s tells the inner error: %s", row.Pattern, w.Body)
		}
		if row.Kind == access.Page && w.Code == http.StatusInternalServerError {
			t.Errorf("%s: %d", row.Pattern, w.Code)
		}
		if row.Kind == access.API && w.Code >= 500 {
			p := problemOf(t, w.Body.Bytes())
			if p.Code != access.CodeDefect || p.Exit != api.ExitDefect || p.Instance == "" {
				t.Errorf("%s: %+v", row.Pattern, p)
			}
		}
	}
}

func problemOf(t *testing.T, body []byte) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("no problem: %v: %s", err, body)
	}
	return p
}

func TestBodyDeadlineIsOurs(t *testing.T) {
	// huma sets a read deadline that it never takes back; a handler that outlasts it
	// would see its request cancelled.
	s := serverFor(t, populated(), nil)
	for path, item := range s.huma.OpenAPI().Paths {
		if item.Post != nil && item.Post.BodyReadTimeout >= 0 || item.Delete != nil && item.Delete.BodyReadTimeout >= 0 {
			t.Errorf("%s has huma's deadline", path)
		}
	}
}
