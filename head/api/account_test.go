package api

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func decoded[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return out
}

// TestAccount: what became of a job, page by page.
func TestAccount(t *testing.T) {
	s := serverFor(t, populated(), nil)
	get := func(path string) *httptest.ResponseRecorder {
		return ask(s.guard, "GET", "/api/v1/jobs/digits-7f3k/"+path, viewerToken, "")
	}
	if g := decoded[api.Goodput](t, get("goodput")); g.Ratio != 0.75 || g.Job != "digits-7f3k" {
		t.Errorf("%+v", g)
	}
	h := decoded[api.List[api.History]](t, get("history?limit=1"))
	if len(h.Items) != 1 || h.Items[0].Attempt != 0 || h.Remaining != 1 {
		t.Errorf("%+v", h)
	}
	if h = decoded[api.List[api.History]](t, get("history?cursor="+h.Cursor)); len(h.Items) != 1 || h.Items[0].Attempt != 1 {
		t.Errorf("%+v", h)
	}
	f := decoded[api.List[api.FailureRow]](t, get("failures"))
	if len(f.Items) != 3 || !f.Items[0].Root || f.Items[1].Root || f.Items[2].Attempt != 1 {
		t.Errorf("%+v", f)
	}
	if f = decoded[api.List[api.FailureRow]](t, get("failures?attempt=1")); len(f.Items) != 1 || f.Items[0].Message != "ValueError" {
		t.Errorf("%+v", f)
	}
	w := ask(s.guard, "POST", "/api/v1/jobs/digits-7f3k/stacks", adminToken, "")
	if st := decoded[api.Stacks](t, w); len(st.Groups) != 1 {
		t.Errorf("%+v", st)
	}
}

// TestMetrics: what a scraper reads, and who may be one.
func TestMetrics(t *testing.T) {
	b := populated()
	s := serverFor(t, b, nil)
	w := ask(s.guard, "GET", "/metrics", viewerToken, "")
	text := w.Body.String()
	for _, line := range []string{
		`troupe_build_info{go="`, `troupe_job_goodput_ratio{troupe_job="digits-7f3k"} 0.75`, `troupe_job_seconds{part="waiting",troupe_job="digits-7f3k"} 15`,
		`troupe_recovery_seconds_bucket{cause="user",le="1"} 1`, `troupe_recovery_seconds_bucket{cause="user",le="+Inf"} 3`, `troupe_recovery_seconds_sum{cause="user"} 4`,
		`troupe_lost_work_seconds_total{cause="user"} 12.5`, `troupe_pending_jobs{queue="default",reason="Fit"} 2`, `troupe_checkpoint_age_seconds{troupe_job="digits-7f3k"} 7.5`,
		`troupe_gpus{state="free"} 3`, "# TYPE troupe_recovery_seconds histogram", "# TYPE troupe_lost_work_seconds_total counter",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && !strings.HasPrefix(line, "troupe_") && !strings.HasPrefix(line, "# ") {
			t.Errorf("not ours: %s", line)
		}
	}
	b.failWith = errors.New("no leader")
	if w := ask(s.guard, "GET", "/metrics", viewerToken, ""); w.Code != 500 {
		t.Errorf("a failed read is a scrape of %d: %s", w.Code, w.Body)
	}
	b.failWith = nil
	from := func(remote, host, header string) int {
		r := httptest.NewRequest("GET", "http://"+host+"/metrics", nil)
		r.RemoteAddr, r.Host = remote, host
		if header != "" {
			r.Header.Set(header, "203.0.113.9")
		}
		w := httptest.NewRecorder()
		s.guard.ServeHTTP(w, r)
		return w.Code
	}
	for _, k := range []struct {
		remote, host, header string
		code                 int
	}{
		{"127.0.0.1:4000", "127.0.0.1:7600", "", 200},
		{"[::1]:4000", "localhost:7600", "", 200},
		{"192.0.2.7:4000", "127.0.0.1:7600", "", 401},
		{"127.0.0.1:4000", "127.0.0.1:7600", "X-Forwarded-For", 401}, // a proxy on this machine
		{"127.0.0.1:4000", "127.0.0.1:7600", "Forwarded", 401},
		{"127.0.0.1:4000", "evil.example", "", 421},
	} {
		if code := from(k.remote, k.host, k.header); code != k.code {
			t.Errorf("%+v: %d", k, code)
		}
	}
}
