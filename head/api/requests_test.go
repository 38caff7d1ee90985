package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func TestWrongFieldsArePointedAt(t *testing.T) {
	s := serverFor(t, populated(), nil)
	for _, c := range []struct {
		name, target, body string
		status             int
		pointer, detail    string
	}{
		{"misspelt", "jobs", `{"comand":["a"]}`, 422, "/comand", `did you mean "command"?`},
		{"wrong case", "jobs", `{"Command":["a"]}`, 422, "/Command", `did you mean "command"?`},
		{"misspelt deep", "jobs", `{"command":["a"],"resources":{"gpu":1}}`, 422, "/resources/gpu", `"cpu"`},
		{"misspelt in a list", "placement-groups", `{"bundles":[{"cpu":1},{"memry":1}]}`, 422, "/bundles/1/memry", `did you mean "memory"?`},
		{"far from all", "placement-groups", `{"zzzzzzzz":1}`, 422, "/zzzzzzzz", "there are bundles, deadline"},
		{"twice", "jobs", `{"name":"a","name":"b","command":["a"]}`, 422, "/name", "twice"},
		{"odd name", "jobs", `{"a/b~c":1}`, 422, "/a~1b~0c", "no field"},
		{"text for a number", "jobs", `{"command":["a"],"ranks":"4"}`, 422, "/ranks", "whole number that fits in 64 bits, not text"},
		{"fraction", "jobs", `{"command":["a"],"ranks":1.5}`, 422, "/ranks", "not 1.5"},
		{"no ranks", "jobs", `{"command":["a"],"ranks":0}`, 422, "/ranks", "cannot be 0: leave it out for the default, 1"},
		{"nothing for each rank", "jobs", `{"command":["a"],"resources":{"gpus":0}}`, 422, "/resources", "cannot be 0: leave it out for the default, 0.01 CPU"},
		{"no time to end", "jobs", `{"command":["a"],"shutdownTimeout":"0s"}`, 422, "/shutdownTimeout", "the default, 30s"},
		{"no checkpoints", "jobs", `{"command":["a"],"checkpoint":{"keepLast":0}}`, 422, "/checkpoint/keepLast", "the default, 3"},
		{"sizes of no multiple", "jobs", `{"command":["a"],"sizes":{"min":1,"max":2,"multiple":0}}`, 422, "/sizes/multiple", "the default, 1"},
		{"a role that needs nobody", "placement-groups", `{"bundles":[{"cpu":1}],"roles":[{"name":"a","bundles":1,"min":0}]}`, 422, "/roles/0/min", "the default, all of them"},
		{"2^63", "jobs", `{"command":["a"],"ranks":9223372036854775808}`, 422, "/ranks", "fits in 64 bits"},
		{"1e309", "jobs", `{"command":["a"],"priority":1e309}`, 422, "/priority", "fits in 64 bits"},
		{"NaN", "jobs", `{"command":["a"],"priority":NaN}`, 400, "", "line 1, column"},
		{"-1 GPU", "jobs", `{"command":["a"],"resources":{"gpus":-1}}`, 422, "/resources/gpus", "cannot be negative"},
		{"a million ranks", "jobs", `{"command":["a"],"ranks":1000000}`, 422, "/ranks", "limit is 4096"},
		{"1Gi", "jobs", `{"command":["a"],"resources":{"memory":"1Gi"}}`, 422, "/resources/memory", "1GiB"},
		{"too much memory", "jobs", `{"command":["a"],"resources":{"memory":"9007199254740993"}}`, 422, "/resources/memory", "limit"},
		{"whole and share", "jobs", `{"command":["a"],"resources":{"gpus":1,"share":5}}`, 422, "/resources/gpus", "one of the two"},
		{"object for a list", "jobs", `{"command":{}}`, 422, "/command", "must be a list, not an object"},
		{"list for an object", "jobs", `[]`, 422, "", "must be an object, not a list"},
		{"no command", "jobs", `{"name":"a"}`, 422, "/command", "empty"},
		{"NUL in an argument", "jobs", `{"command":["a\u0000"]}`, 422, "/command/0", "NUL"},
		{"escape in a name", "jobs", `{"command":["a"],"name":"\u001b[31m"}`, 422, "/name", "control"},
		{"long name", "jobs", `{"command":["a"],"name":"` + strings.Repeat("n", 64) + `"}`, 422, "/name", "limit is 63"},
		{"large environment", "jobs", `{"command":["a"],"env":{"X":"` + strings.Repeat("x", maxEnv) + `"}}`, 422, "/env", "limit is 65536"},
		{"odd variable", "jobs", `{"command":["a"],"env":{"A=B":"1"}}`, 422, "/env/A=B", "no variable"},
		{"binding", "jobs", `{"name":"a","command":["true"],"resources":{"gpus":1},"numaBinding":"sockt"}`, 422, "/numaBinding", `did you mean "socket"?`},
		{"binding to nothing", "jobs", `{"name":"a","command":["true"],"numaBinding":"node"}`, 422, "/numaBinding", "the ranks ask for none"},
		{"strategy", "placement-groups", `{"strategy":"PAKC","bundles":[{}]}`, 422, "/strategy", `did you mean "PACK"?`},
		{"kind", "jobs", `{"command":["a"],"kind":"trainning"}`, 422, "/kind", `"training"`},
		{"no bundles", "placement-groups", `{}`, 422, "/bundles", "at least one"},
		{"two documents", "jobs", `{} {}`, 400, "", "line 1"},
		{"cut off", "jobs", "{\n \"name\": ", 400, "", "line 2"},
		{"not UTF-8", "jobs", "{\"name\":\"\xff\"}", 400, "", "UTF-8"},
		{"nothing", "jobs", "", 400, "", "body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := ask(s.guard, "POST", "/api/v1/"+c.target, adminToken, c.body)
			if w.Code != c.status {
				t.Fatalf("status %d, want %d: %s", w.Code, c.status, w.Body)
			}
			p := problemOf(t, w.Body.Bytes())
			found := strings.Contains(p.Detail, c.detail)
			if c.status == 422 {
				found = slices.ContainsFunc(p.Errors, func(e api.FieldError) bool {
					return e.Pointer == c.pointer && strings.Contains(e.Detail, c.detail)
				})
			}
			if !found || p.Exit != api.ExitBadInput {
				t.Errorf("want %q at %q: %+v", c.detail, c.pointer, p)
			}
		})
	}
}

func TestWrongParameters(t *testing.T) {
	s := serverFor(t, populated(), nil)
	for target, want := range map[string]string{
		"/api/v1/jobs?limt=3":                              `did you mean "limit"`,
		"/api/v1/jobs?limit=1001":                          "query/limit",
		"/api/v1/jobs?limit=1e12":                          "query/limit",
		"/api/v1/jobs?limit=0":                             "query/limit",
		"/api/v1/jobs?cursor=xxx":                          "query/cursor",
		"/api/v1/jobs/digits-7f3k?wait=5":                  "query/wait",
		"/api/v1/jobs/digits-7f3k?wait=5s&for=runing":      `did you mean \"running\"`,
		"/api/v1/placement-groups/pg-digits?for=plaecd":    `did you mean \"placed\"`,
		"/api/v1/jobs/digits-7f3k/ranks/-1/log":            "path/rank",
		"/api/v1/jobs/digits-7f3k/ranks/0/log?offset=-5":   "query/offset",
		"/api/v1/jobs/digits-7f3k/ranks/0/log?stream=self": "query/stream",
		"/api/v1/events?after=x":                           "query/after",
	} {
		w := ask(s.guard, "GET", target, viewerToken, "")
		body := w.Body.String()
		if w.Code != 422 || !strings.Contains(body, strings.ReplaceAll(want, `"`, `\"`)) && !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", target, w.Code, body)
		}
	}
}

func TestDecodeAgreesWithTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z0-9 /~"\\<>]{0,12}`)
		want := api.JobSpec{
			Name: text.Draw(t, "name"), Command: rapid.SliceOfN(text, 1, 4).Draw(t, "command"),
			Env:   rapid.MapOfN(text, text, 0, 3).Draw(t, "env"),
			Ranks: rapid.Int64().Draw(t, "ranks"), Resources: api.Resources{Memory: unit.Bytes(rapid.Int64Range(0, 1<<62).Draw(t, "memory"))},
			FailureGrace: unit.Duration(rapid.Int64Range(0, 1e15).Draw(t, "grace")),
		}
		if rapid.Bool().Draw(t, "more") {
			want.Restart.User = new(rapid.Int64().Draw(t, "user"))
			want.Actor = &api.ActorSpec{Class: "c", Args: rapid.SliceOf(rapid.Byte()).Draw(t, "args")}
		}
		raw, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var ours, theirs api.JobSpec
		if err := decode(raw, &ours); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if err := json.Unmarshal(raw, &theirs); err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(ours)
		b, _ := json.Marshal(theirs)
		if string(a) != string(b) {
			t.Fatalf("\n%s\n%s", a, b)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"a","command":["x"],"resources":{"cpu":"1"},"actor":{"args":"aGk="}}`))
	f.Add([]byte(`{"bundles":[[],{},null,1e5]}`))
	f.Add([]byte("\x00{"))
	f.Add([]byte(" {\t\"ranks\" : 2 ,\r\n\"env\":{\"a\\u00e9\\\\\":\"]}\\\"\" }, \"command\":[ ] , \"restart\":{\"user\":null}} "))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		var job, theirs api.JobSpec
		if decode(data, &job) == nil {
			if err := json.Unmarshal(data, &theirs); err != nil || !reflect.DeepEqual(job, theirs) {
				t.Fatalf("encoding/json reads it otherwise (%v):\n%+v\n%+v", err, job, theirs)
			}
			_ = new(checks).job(job)
		}
		var group api.GroupSpec
		if decode(data, &group) == nil {
			_ = new(checks).group(group)
		}
	})
}

func TestSubmitOnce(t *testing.T) {
	b := newFake()
	s := serverFor(t, b, nil)
	post := func(body string, headers ...string) (int, api.Job, http.Header) {
		w := ask(s.guard, "POST", "/api/v1/jobs", adminToken, body, headers...)
		var job api.Job
		_ = json.Unmarshal(w.Body.Bytes(), &job)
		return w.Code, job, w.Header()
	}
	code, job, h := post(`{"name":"a","command":["true"],"owner":{"bootId":"x","pid":1,"startTime":2}}`, "Idempotency-Key", "k1", "Idempotency-Age", "90s")
	if code != 201 || job.ID != "keyed" || h.Get("Location") != "/api/v1/jobs/keyed" || h.Get(api.HeaderIndex) == "" || job.PreviouslySubmitted != nil {
		t.Fatalf("%d %+v %v", code, job, h)
	}
	if got := b.keys["k1"].FirstSent; !got.Equal(start.Add(-90 * time.Second)) {
		t.Errorf("first sent %s", got)
	}
	// The same request of another process, with its fields in another order.
	code, job, _ = post(`{"owner":{"bootId":"x","pid":9,"startTime":3},"command":["true"],"name":"a","launchEnv":"e"}`, "Idempotency-Key", "k1")
	if code != 200 || job.PreviouslySubmitted == nil {
		t.Errorf("a repeat: %d %+v", code, job)
	}
	if code, _, _ = post(`{"name":"b","command":["true"]}`, "Idempotency-Key", "k1"); code != 422 {
		t.Errorf("another request under the key: %d", code)
	}
	if n := len(b.writes); n != 1 {
		t.Errorf("%d writes", n)
	}
	for _, bad := range []string{strings.Repeat("k", 129), "a b", "ü"} {
		if code, _, _ := post(`{"name":"b","command":["true"]}`, "Idempotency-Key", bad); code != 422 {
			t.Errorf("key %.10q: %d", bad, code)
		}
	}
}

func TestStopSaysHowLong(t *testing.T) {
	for body, want := range map[string]time.Duration{"": 0, `{}`: 0, `{"grace":"90s"}`: 90 * time.Second, `{"grace":"0s"}`: 1} {
		b := populated()
		w := ask(serverFor(t, b, nil).guard, "POST", "/api/v1/jobs/digits-7f3k/stop", adminToken, body)
		if w.Code != 200 || b.lastStop != want {
			t.Errorf("%s: %d, grace %s, want %s", body, w.Code, b.lastStop, want)
		}
	}
}

func TestProblemsOfTheBackendPassThrough(t *testing.T) {
	w := ask(serverFor(t, populated(), nil).guard, "GET", "/api/v1/jobs/none", viewerToken, "")
	p := problemOf(t, w.Body.Bytes())
	if w.Code != 404 || p.Code != access.CodeNotFound || p.Exit != api.ExitNotFound || p.Instance == "" {
		t.Errorf("%d %+v", w.Code, p)
	}
	if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("content type %q", ct)
	}
}

func TestPagesMissNoRow(t *testing.T) {
	b := newFake()
	s := serverFor(t, b, nil)
	for i := range 23 {
		b.setJob(api.Job{ID: fmt.Sprintf("j%02d", i), ULID: fmt.Sprintf("%02d", i), State: api.Queued})
	}
	var seen []string
	cursor := ""
	for round := range 20 {
		w := ask(s.guard, "GET", "/api/v1/jobs?limit=5&cursor="+cursor, viewerToken, "")
		var list api.List[api.Job]
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != 200 {
			t.Fatal(w.Code, err)
		}
		for _, j := range list.Items {
			seen = append(seen, j.ID)
		}
		if want := int64(max(0, 23-5*(round+1))); list.Remaining != want {
			t.Errorf("remaining %d, want %d", list.Remaining, want)
		}
		if cursor = list.Cursor; cursor == "" {
			break
		}
		// Jobs come and go in between: the last row shown goes, a newer one comes.
		gone := seen[len(seen)-1]
		if round%2 == 0 {
			gone = "" // and the next time it stays
		}
		b.change(func() {
			b.jobList = slices.DeleteFunc(slices.Clone(b.jobList), func(j api.Job) bool { return j.ID == gone })
		})
		b.setJob(api.Job{ID: fmt.Sprint("new", round), ULID: fmt.Sprint("99", round)})
	}
	if len(seen) != 23 || !slices.IsSortedFunc(seen, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("%d rows: %v", len(seen), seen)
	}
	w := ask(s.guard, "GET", "/api/v1/actors", viewerToken, "")
	if !strings.Contains(w.Body.String(), `"items":[]`) {
		t.Errorf("an empty list: %s", w.Body)
	}
	if w := ask(s.guard, "GET", "/api/v1/jobs?state=failed,queued&limit=1000", viewerToken, ""); strings.Contains(w.Body.String(), `"new1"`) || !strings.Contains(w.Body.String(), `"j00"`) {
		t.Errorf("by state: %s", w.Body)
	}
}

// later runs a request in the bubble and tells when it is answered.
func later(s *server, target string) chan *httptest.ResponseRecorder {
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() { done <- ask(s.guard, "GET", target, viewerToken, "") }()
	return done
}

func answered(c chan *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	synctest.Wait()
	select {
	case w := <-c:
		return w
	default:
		return nil
	}
}

func TestBlockingReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		s := serverFor(t, b, nil)
		b.setJob(api.Job{ID: "x", State: api.Queued})
		job, _ := b.Job(t.Context(), "x")

		if w := answered(later(s, fmt.Sprintf("/api/v1/jobs/x?wait=30s&minIndex=%d", job.Index-1))); w == nil {
			t.Error("waits for what is there")
		}
		c := later(s, fmt.Sprintf("/api/v1/jobs/x?wait=30s&minIndex=%d", job.Index))
		done := later(s, "/api/v1/jobs/x?wait=30s&for=done")
		b.event("job/other", "no change of x")
		if w := answered(c); w != nil {
			t.Fatalf("answered without a change: %s", w.Body)
		}
		job.State = api.Running
		b.setJob(job)
		if w := answered(c); w == nil || !strings.Contains(w.Body.String(), "RUNNING") || w.Header().Get(api.HeaderIndex) != fmt.Sprint(b.Index()) {
			t.Errorf("not answered by the change: %v", w)
		}
		if w := answered(done); w != nil {
			t.Errorf("done while it runs: %s", w.Body)
		}
		job.State = api.Failed
		b.setJob(job)
		if w := answered(done); w == nil || !strings.Contains(w.Body.String(), "FAILED") {
			t.Error("a terminal state does not end the wait")
		}
		if n := s.streams.Count(); n != 0 {
			t.Errorf("%d streams are still counted", n)
		}

		c = later(s, "/api/v1/jobs/x?wait=1h&minIndex=1000000")
		time.Sleep(maxWait - time.Second)
		if w := answered(c); w != nil {
			t.Error("answered before the time")
		}
		time.Sleep(time.Second)
		if w := answered(c); w == nil || w.Code != 200 {
			t.Errorf("not answered at the time: %v", w)
		}

		c = later(s, "/api/v1/placement-groups/pg-big?wait=30s&for=placed")
		g, _ := b.Group(t.Context(), "pg-big")
		g.State = api.GroupPlaced
		b.setGroup(g)
		if w := answered(c); w == nil || !strings.Contains(w.Body.String(), "PLACED") {
			t.Errorf("placed: %v", w)
		}
	})
}

func TestRevokedWhileItWaits(t *testing.T) { // attack 18
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		s := serverFor(t, b, nil)
		c := later(s, "/api/v1/jobs/digits-7f3k?wait=30s&minIndex=1000000")
		synctest.Wait()
		b.mu.Lock()
		b.revoked[viewerToken] = true
		b.mu.Unlock()
		time.Sleep(5 * time.Second)
		if w := answered(c); w == nil || w.Code != 401 {
			t.Errorf("after five seconds: %v", w)
		}
	})
}

func TestStreamsAreCapped(t *testing.T) { // attack 38
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		s := serverFor(t, b, func(o *Options) { o.MaxStreams, o.MaxStreamsEach = 20, 10 })
		var open []chan *httptest.ResponseRecorder
		for range 50 {
			open = append(open, later(s, "/api/v1/jobs/digits-7f3k?wait=30s&minIndex=1000000"))
		}
		refused := 0
		for _, c := range open {
			if w := answered(c); w != nil {
				refused++
				if p := problemOf(t, w.Body.Bytes()); w.Code != 429 || w.Header().Get("Retry-After") == "" || p.Code != access.CodeStreams || !p.Retryable {
					t.Fatalf("%d %+v", w.Code, p)
				}
			}
		}
		if refused != 40 {
			t.Errorf("%d of 50 were refused", refused)
		}
		time.Sleep(maxWait)
		synctest.Wait()
		if n := s.streams.Count(); n != 0 {
			t.Errorf("%d streams are still counted", n)
		}
	})
}

func TestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		s := serverFor(t, b, nil)
		const base = "/api/v1/jobs/digits-7f3k/ranks/0/log"
		get := func(query string) *httptest.ResponseRecorder { return answered(later(s, base+query)) }
		check := func(w *httptest.ResponseRecorder, body, from, size, end, ranged string) {
			t.Helper()
			h := w.Header()
			got := []string{w.Body.String(), h.Get("X-Log-Start"), h.Get("X-Log-Size"), h.Get("X-Log-End"), h.Get("Content-Range")}
			if want := []string{body, from, size, end, ranged}; w.Code != 200 || !slices.Equal(got, want) {
				t.Errorf("%d %q, want %q", w.Code, got, want)
			}
			if h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("a browser could take the output for a page: %v", h)
			}
		}
		check(get(""), "step 41\nstep 42\n", "0", "16", "false", "bytes 0-15/16") // the newest attempt
		check(get("?offset=8&limit=5"), "step ", "8", "16", "false", "bytes 8-12/16")
		check(get("?offset=16"), "", "16", "16", "false", "")
		check(get("?offset=999&limit=1000000000000"), "", "16", "16", "false", "")
		if w := get("?attempt=7"); w.Code != 404 {
			t.Errorf("an attempt that is not: %d", w.Code)
		}

		// A follower gets what is written, without a change of the state.
		c := later(s, base+"?offset=16&wait=20s")
		if answered(c) != nil {
			t.Fatal("did not wait")
		}
		time.Sleep(3 * time.Second) // looks ever less often, but goes on looking
		b.mu.Lock()
		b.logs["digits-7f3k/0/1/stdout"].Data = append(b.logs["digits-7f3k/0/1/stdout"].Data, "done\n"...)
		b.mu.Unlock()
		time.Sleep(slowestPoll)
		check(answered(c), "done\n", "16", "21", "false", "bytes 16-20/21")

		// A rank that has not started is waited for.
		c = later(s, base+"?attempt=2&wait=20s")
		if answered(c) != nil {
			t.Fatal("did not wait for the start")
		}
		b.change(func() {
			b.logs["digits-7f3k/0/2/stdout"] = &wire.LogChunk{Start: 100, Data: []byte("late"), Ended: true}
		})
		check(answered(c), "late", "100", "104", "true", "bytes 100-103/104")
		check(get("?attempt=2&offset=104&wait=20s"), "", "104", "104", "true", "")

		// So is the first attempt of a job that waits; one that ended without any has none.
		queued := "/api/v1/jobs/eval-k2m9/ranks/0/log"
		if w := answered(later(s, queued)); w == nil || w.Code != 200 || w.Header().Get("X-Log-Attempt") != "-1" || w.Header().Get("X-Log-End") != "false" {
			t.Errorf("before the first attempt: %v", w)
		}
		c = later(s, queued+"?wait=20s")
		if answered(c) != nil {
			t.Fatal("did not wait for the first attempt")
		}
		job, _ := b.Job(t.Context(), "eval-k2m9")
		job.Attempts = []api.Attempt{{Number: 0}}
		b.mu.Lock()
		b.logs["eval-k2m9/0/0/stdout"] = &wire.LogChunk{Data: []byte("hello"), Ended: true}
		b.mu.Unlock()
		b.setJob(job)
		check(answered(c), "hello", "0", "5", "true", "bytes 0-4/5")
		b.setJob(api.Job{ID: "never", State: api.Stopped})
		if w := answered(later(s, "/api/v1/jobs/never/ranks/0/log?wait=20s")); w == nil || w.Header().Get("X-Log-End") != "true" {
			t.Errorf("a job that ended before its first attempt: %v", w)
		}
		if n := s.streams.Count(); n != 0 {
			t.Errorf("%d streams are still counted", n)
		}
	})
}

func TestEventsList(t *testing.T) {
	b := populated()
	s := serverFor(t, b, nil)
	list := func(query string) (api.List[api.Event], int) {
		w := ask(s.guard, "GET", "/api/v1/events"+query, viewerToken, "")
		var l api.List[api.Event]
		_ = json.Unmarshal(w.Body.Bytes(), &l)
		return l, w.Code
	}
	seqs := func(l api.List[api.Event]) (out []uint64) {
		for _, e := range l.Items {
			out = append(out, e.Seq)
		}
		return out
	}
	if l, _ := list("?limit=2"); !slices.Equal(seqs(l), []uint64{4, 5}) {
		t.Errorf("the newest: %v", seqs(l))
	}
	l, _ := list("?after=0&limit=2")
	if !slices.Equal(seqs(l), []uint64{1, 2}) || l.Remaining == 0 || l.Cursor != "2" {
		t.Errorf("the first: %v %+v", seqs(l), l)
	}
	if l, _ := list("?after=2&limit=3"); !slices.Equal(seqs(l), []uint64{3, 4, 5}) || l.Remaining != 0 {
		t.Errorf("the rest: %v", seqs(l))
	}
	if l, _ := list("?after=0&object=node/x"); len(l.Items) != 0 {
		t.Errorf("of another object: %v", seqs(l))
	}
	b.mu.Lock()
	b.dropped = 3
	b.mu.Unlock()
	if _, code := list("?after=1"); code != 410 {
		t.Errorf("behind what is kept: %d", code)
	}
	if l, code := list("?after=0"); code != 200 || !slices.Equal(seqs(l), []uint64{4, 5}) {
		t.Errorf("all that is kept: %d %v", code, seqs(l))
	}
}

func TestSignInAddress(t *testing.T) {
	s := serverFor(t, populated(), nil)
	var code api.SignInCode
	w := ask(s.guard, "POST", "/api/v1/ui/sign-in-codes", adminToken, "")
	if err := json.Unmarshal(w.Body.Bytes(), &code); err != nil || !strings.HasPrefix(code.URL, "http://127.0.0.1:7600/ui/sign-in?code=") || !strings.HasSuffix(code.URL, code.Path) {
		t.Fatalf("%v %s", err, w.Body)
	}
	w = ask(s.guard, "GET", code.Path, "", "")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "./" || len(w.Result().Cookies()) != 1 {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	cookie := w.Result().Cookies()[0]
	if w := ask(s.guard, "GET", "/ui/", "", "", "Cookie", cookie.Name+"="+cookie.Value); w.Code != 200 {
		t.Errorf("the page with the cookie: %d", w.Code)
	}
	if w := ask(s.guard, "POST", "/api/v1/jobs", "", `{"name":"n","command":["true"]}`, "Cookie", cookie.Name+"="+cookie.Value, "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("another site uses the cookie: %d", w.Code)
	}
	if w := ask(s.guard, "GET", code.Path, "", ""); w.Code != 401 || !strings.Contains(w.Header().Get("Content-Type"), "text/html") {
		t.Errorf("a second time: %d", w.Code)
	}
}

func TestReadiness(t *testing.T) {
	b := newFake()
	b.ready = fmt.Errorf("no leader at 10.1.2.3")
	w := ask(serverFor(t, b, nil).guard, "GET", "/readyz", "", "")
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || strings.Contains(w.Body.String(), "10.1.2.3") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestEnvironmentIsHidden: names are shown to everybody, values to admins alone.
func TestEnvironmentIsHidden(t *testing.T) {
	for role, want := range map[access.Role]string{access.Viewer: hidden, access.Admin: "sk-123"} {
		ctx := access.WithIdentity(t.Context(), access.Identity{Role: role})
		jobs := []api.Job{{Spec: api.JobSpec{Env: map[string]string{"API_KEY": "sk-123"}}}}
		if got := hideEnv(ctx, jobs)[0].Spec.Env["API_KEY"]; got != want {
			t.Errorf("%s sees %q, want %q", role, got, want)
		}
		if jobs[0].Spec.Env["API_KEY"] != "sk-123" {
			t.Error("the record itself was changed")
		}
	}
}
