package api

import (
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// pages are the addresses of all pages that show something.
func pages() []string {
	var out []string
	for _, row := range access.Table() {
		if row.Kind == access.Page && row.Method == http.MethodGet && !row.Anonymous {
			out = append(out, target(row))
		}
	}
	return out
}

var (
	hrefs   = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	tables  = regexp.MustCompile(`(?s)<table.*?</table>`)
	inlined = regexp.MustCompile(`(?i)<script|<style|\sstyle=|\son[a-z]+=|javascript:`)
)

func TestEveryPageIsWhole(t *testing.T) {
	for name, b := range map[string]*fake{"populated": populated(), "empty": newFake()} {
		s := serverFor(t, b, nil)
		for _, p := range pages() {
			w := ask(s.guard, "GET", p, viewerToken, "")
			html := w.Body.String()
			if name == "empty" && strings.HasPrefix(p, "/ui/jobs/") {
				if w.Code != 404 || !strings.Contains(html, "What to do") {
					t.Errorf("%s of a job that is not: %d", p, w.Code)
				}
				continue
			}
			if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
				t.Fatalf("%s, %s: %d %s", name, p, w.Code, html)
			}
			if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s has no policy", p)
			}
			for what, n := range map[string]int{"<h1": 1, "<main": 1, "<header": 1, "<footer": 1, "<nav": 1, `class="skip"`: 1, `lang="en"`: 1, `http-equiv="refresh"`: 1, "refresh=off": 1, "As of": 1} {
				if got := strings.Count(html, what); got != n {
					t.Errorf("%s, %s: %d of %s, want %d", name, p, got, what, n)
				}
			}
			if found := inlined.FindString(html); found != "" {
				t.Errorf("%s: %q would not run or apply under the policy", p, found)
			}
			for _, table := range tables.FindAllString(html, -1) {
				if !strings.Contains(table, "<caption>") || !strings.Contains(table, `scope="col"`) {
					t.Errorf("%s: a table without caption or headers: %.100s", p, table)
				}
			}
			if strings.Contains(html, "ZgotmplZ") || strings.Contains(html, "&lt;nil&gt;") || strings.Contains(html, "%!") {
				t.Errorf("%s: a value could not be shown: %s", p, html)
			}
			paused := ask(s.guard, "GET", p+"?refresh=off", viewerToken, "").Body.String()
			if strings.Contains(paused, `http-equiv="refresh"`) || !strings.Contains(paused, "Refresh again") {
				t.Errorf("%s does not pause", p)
			}
		}
	}
}

func TestEveryLinkLeadsSomewhereBelowAnyPrefix(t *testing.T) {
	s := serverFor(t, populated(), nil)
	const prefix = "/some/where"
	check := func(page, html string) {
		t.Helper()
		base, err := url.Parse("http://h" + prefix + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hrefs.FindAllStringSubmatch(html, -1) {
			if strings.HasPrefix(m[1], "#") {
				continue
			}
			to, err := base.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
			if err != nil || !strings.HasPrefix(to.Path, prefix+"/ui/") {
				t.Errorf("%s links to %s outside of the page", page, m[1])
				continue
			}
			method := "GET"
			if path.Base(to.Path) == "sign-out" {
				continue // a form; TestSignInOnce sends it
			}
			target := strings.TrimPrefix(to.EscapedPath(), prefix)
			if w := ask(s.guard, method, target, viewerToken, ""); w.Code != 200 {
				t.Errorf("%s links to %s: %d", page, target, w.Code)
			}
		}
	}
	for _, p := range pages() {
		check(p, ask(s.guard, "GET", p, viewerToken, "").Body.String())
	}
	for _, wrong := range []string{"/ui/nothing", "/ui/jobs/none", "/ui/a/b/c/d", "/deep/er", "/x"} {
		w := ask(s.guard, "GET", wrong, viewerToken, "", "Accept", "text/html")
		if w.Code != 404 || !strings.Contains(w.Body.String(), "<h1") {
			t.Errorf("%s: %d %s", wrong, w.Code, w.Body)
		}
		check(wrong, w.Body.String())
	}
}

func TestTextIsShownAsText(t *testing.T) { // attack 27
	const evil = `<img src=x onerror=alert(1)>"'javascript:alert(2)`
	b := populated()
	b.jobList = []api.Job{{
		ID: evil, ULID: "01", Run: evil, State: api.JobState(evil), Group: evil,
		Spec:       api.JobSpec{Name: evil, Kind: api.JobKind(evil), Command: []string{evil}, Resources: api.Resources{CPU: unit.MilliCPU(1)}},
		Reason:     &api.Reason{Text: evil, Blockers: []string{evil}, Frees: evil},
		Conditions: []api.Condition{{Type: evil, Status: evil, Message: evil}},
		Attempts: []api.Attempt{{
			Cause:   api.Cause(evil),
			Ranks:   []api.Rank{{Node: evil, State: evil}},
			Failure: &api.Failure{Message: evil, Signal: evil, Node: evil, Traceback: evil},
		}},
	}}
	b.groups = []api.Group{{ID: evil, State: api.GroupState(evil), Job: evil, Spec: api.GroupSpec{Name: evil, Strategy: api.Strategy(evil)}, Reason: &api.Reason{Text: evil}, Bundles: []api.Placed{{Node: evil}}}}
	b.nodes = []api.Node{{ID: evil, Name: evil, State: api.NodeState(evil), Groups: []string{evil}, GPUs: []api.GPU{{Model: evil, Owner: evil, Health: evil}}, Conditions: []api.Condition{{Type: evil, Message: evil}}}}
	b.actors = []api.Actor{{ID: evil, Name: evil, Namespace: evil, Class: evil, State: evil, Node: evil}}
	b.points = []api.Checkpoint{{Run: evil, State: evil, Reason: evil}}
	b.eventLog = []api.Event{{Seq: 1, Type: evil, Object: "job/" + evil, Text: evil}}
	s := serverFor(t, b, nil)
	shown := 0
	for _, p := range pages() {
		if strings.HasPrefix(p, "/ui/jobs/") {
			p = "/ui/jobs/" + url.PathEscape(evil)
		}
		w := ask(s.guard, "GET", p, viewerToken, "")
		html := w.Body.String()
		if w.Code != 200 {
			t.Errorf("%s: %d", p, w.Code)
		}
		if strings.Contains(html, "<img src=x") || regexp.MustCompile(`(?:href|src|action)="\s*javascript:`).MatchString(html) {
			t.Errorf("%s shows it as markup", p)
		}
		shown += strings.Count(html, "&lt;img src=x onerror=alert(1)&gt;")
	}
	if shown < 30 {
		t.Errorf("shown %d times: the pages do not show what they should", shown)
	}
	for _, p := range []string{"/ui/" + url.PathEscape(evil), "/ui/jobs/" + url.PathEscape(evil+"x")} {
		if w := ask(s.guard, "GET", p, viewerToken, ""); w.Code != 404 || strings.Contains(w.Body.String(), "<img src=x") {
			t.Errorf("%s: %d %s", p, w.Code, w.Body)
		}
	}
	// In the API it is data, with a content type that no browser shows as a page.
	w := ask(s.guard, "GET", "/api/v1/jobs", viewerToken, "")
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", w.Header())
	}
}

func TestProblemsOfPagesArePages(t *testing.T) {
	s := serverFor(t, populated(), nil)
	for _, c := range []struct {
		method, target, token string
		headers               []string
		want                  int
	}{
		{"GET", "/ui/", "", nil, 401},
		{"GET", "/ui/", "wrong", nil, 401},
		{"GET", "/ui/sign-in", "", nil, 401},
		{"GET", "/ui/", viewerToken, []string{"Host", "evil.example"}, 421},
		{"POST", "/ui/sign-out", viewerToken, []string{"Origin", "null"}, 403},
		{"POST", "/ui/jobs", viewerToken, nil, 405},
		{"GET", "/ui/static/none.js", "", nil, 404},
		{"GET", "/ui/static/..%2f..%2fdashboard.go", "", nil, 404},
	} {
		w := ask(s.guard, c.method, c.target, c.token, "", c.headers...)
		html := w.Body.String()
		if w.Code != c.want || !strings.Contains(html, "<h1") || !strings.Contains(html, "What to do") || !strings.Contains(html, "TRP-") {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.target, w.Code, c.want, html)
		}
		if c.want == 401 && strings.Contains(html, "<nav") {
			t.Errorf("%s offers pages to nobody", c.target)
		}
	}
}

func TestStyleIsCached(t *testing.T) {
	s := serverFor(t, populated(), nil)
	w := ask(s.guard, "GET", "/ui/static/style.css", "", "")
	etag := w.Header().Get("ETag")
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/css") || etag == "" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	if w := ask(s.guard, "GET", "/ui/static/style.css", "", "", "If-None-Match", etag); w.Code != 304 {
		t.Errorf("again: %d", w.Code)
	}
}
