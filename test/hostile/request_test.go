package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// problemOf decodes an answer that refuses.
func problemOf(body []byte) (p api.Problem) {
	_ = json.Unmarshal(body, &p)
	return p
}

// TestRequestsOfNoSense: amounts that are negative, overflow, contradict each other or are no
// numbers, and names of what is not there, are refused with the place and what to do, and
// leave nothing behind (attack 19).
func TestRequestsOfNoSense(t *testing.T) {
	t.Parallel()
	c := start(t, options{gpus: "fake:2x80GiB"})
	job := func(more string) string { return `{"name":"x","command":["true"]` + more + `}` }
	group := func(bundles string) string { return `{"bundles":[` + bundles + `]}` }
	const jobs, groups, queues, reserve = "POST /api/v1/jobs", "POST /api/v1/placement-groups", "PUT /api/v1/queues", "PUT /api/v1/reservations/r"
	for _, tc := range []struct {
		what, route, body string
		status            int
		where             string // the pointer that the answer names, or a word of its detail
	}{
		{"minus one GPU", jobs, job(`,"resources":{"gpus":-1}`), 422, "/resources/gpus"},
		{"two to the 63 GPUs", jobs, job(`,"resources":{"gpus":9223372036854775808}`), 422, "/resources/gpus"},
		{"no number of GPUs", jobs, job(`,"resources":{"gpus":NaN}`), 400, "invalid character"},
		{"a number beyond all", jobs, job(`,"resources":{"gpus":1e309}`), 422, "/resources/gpus"},
		{"memory that overflows in bytes", jobs, job(`,"resources":{"memory":"8589934592GiB"}`), 422, "/resources/memory"},
		{"memory of an unknown unit", jobs, job(`,"resources":{"memory":"1Gb"}`), 422, "/resources/memory"},
		{"a million ranks", jobs, job(`,"ranks":1000000`), 422, "/ranks"},
		{"no ranks at all, and fewer", jobs, job(`,"ranks":-5`), 422, "/ranks"},
		{"ranks that overflow as bundles", jobs, job(`,"ranks":4096,"resources":{"cpu":9223372036854775807}`), 422, "/resources/cpu"},
		{"a share over one", jobs, job(`,"resources":{"share":1001}`), 422, "/resources/share"},
		{"whole devices and a share", jobs, job(`,"resources":{"gpus":1,"share":500}`), 422, "/resources/gpus"},
		{"more GPUs than there can be", jobs, job(`,"resources":{"gpus":3}`), 422, "the largest node, n1, has 2 GPUs"},
		{"a priority beyond its bounds", jobs, job(`,"priority":9223372036854775807`), 422, "/priority"},
		{"an unknown level", jobs, job(`,"level":"rack"`), 422, `no level "rack"`},
		{"an unknown capacity", jobs, job(`,"uses":{"storage":1}`), 422, `no capacity is named "storage"`},
		{"nothing of a capacity", jobs, job(`,"uses":{"storage":0}`), 422, "/uses/storage"},
		{"an unknown field", jobs, job(`,"gpu":1`), 422, "/gpu"},
		{"a field twice", jobs, job(`,"ranks":1,"ranks":2`), 422, "/ranks"},
		{"an estimate beyond the time limit", jobs, job(`,"timeLimit":"1h","estimate":"2h"`), 422, "/estimate"},
		{"a deadline that is past", jobs, job(`,"deadline":"2020-01-01T00:00:00Z"`), 422, "/deadline"},
		{"rules that no node meets", jobs, job(`,"where":[{"key":"zone","op":"=","values":["a"]},{"key":"zone","op":"!=","values":["a"]}]`), 422, "/where/1"},
		{"a rule of an unknown kind", jobs, job(`,"where":[{"key":"zone","op":"~","values":["a"]}]`), 422, "/where/0/op"},
		{"uid 0", jobs, job(`,"uid":0`), 422, "/uid"},
		{"the group docker", jobs, job(`,"gid":"docker"`), 422, "/gid"},
		{"no bundles", groups, group(``), 422, "/bundles"},
		{"minus one bundle of a role", groups, `{"bundles":[{"cpu":1}],"roles":[{"name":"a","bundles":-1}]}`, 422, "/roles/0/bundles"},
		{"a role of none", groups, `{"bundles":[{"cpu":1}],"roles":[{"name":"a","bundles":1},{"name":"b","bundles":0}]}`, 422, "/roles/1/bundles"},
		{"a bundle of minus one", groups, group(`{"gpus":-1}`), 422, "/bundles/0/gpus"},
		{"bundles without end", groups, group(strings.Repeat(`{"cpu":1},`, 10_000) + `{"cpu":1}`), 422, "/bundles"},
		{"a negative quota", queues, `{"queues":[{"name":"a","tenant":true,"limit":{"gpu":-1}}]}`, 422, "/queues/0/limit"},
		{"a quota without end", queues, `{"queues":[{"name":"a","tenant":true,"limit":{"gpu":1e30}}]}`, 422, "/queues/0/limit"},
		{"a circle of tenants", queues, `{"queues":[{"name":"a","tenant":true,"parent":"b"},{"name":"b","tenant":true,"parent":"a"}]}`, 422, "/queues/0/parent"},
		{"more promised than there is", queues, `{"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":1000}},{"name":"q","parent":"a","guaranteed":{"gpu":2000}}]}`, 422, "/queues/0/guaranteed"},
		{"a window that ends before it starts", reserve, `{"name":"r","maintenance":"x","count":1,"start":"2040-01-02T00:00:00Z","end":"2040-01-01T00:00:00Z"}`, 422, "/end"},
	} {
		method, route, _ := strings.Cut(tc.route, " ")
		status, body := c.call(method, route, tc.body)
		p := problemOf(body)
		named := slices.ContainsFunc(p.Errors, func(e api.FieldError) bool { return strings.HasPrefix(e.Pointer, tc.where) && e.Detail != "" })
		if status != tc.status || p.Code == "" || !named && !strings.Contains(p.Detail, tc.where) {
			t.Errorf("%s: status %d, want %d and %q: %s", tc.what, status, tc.status, tc.where, clip(string(body)))
		}
	}
	if _, body := c.call(http.MethodGet, "/api/v1/jobs", ""); strings.Contains(string(body), `"name":"x"`) {
		t.Errorf("a job was made: %s", clip(string(body)))
	}
	c.ended(c.submit(spec("after", 1, "true")), api.Succeeded, 0)
	c.idle()
}

// TestQuotaEdgeOverTheAPI: a hundred at once where room is left for three are never more,
// and what is cancelled by two at once is credited once (attack 19).
func TestQuotaEdgeOverTheAPI(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	const milli = `"limit":{"cpu":30},"guaranteed":{"cpu":30}`
	if status, body := c.call(http.MethodPut, "/api/v1/queues", `{"queues":[{"name":"nlp","tenant":true,`+milli+`}]}`); status >= 300 {
		t.Fatalf("status %d: %s", status, body)
	}
	charged := func() int64 {
		var q api.QueueStatus
		_, body := c.call(http.MethodGet, "/api/v1/queues/nlp", "")
		if err := json.Unmarshal(body, &q); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		n, _ := q.Charged.Get("cpu")
		if n > 30 || n < 0 {
			t.Errorf("%d of 30 are charged", n)
		}
		return n
	}
	ids := make([]string, 100)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			s := spec(fmt.Sprintf("j%d", i), 1, "sleep", "1000")
			s["tenant"], s["resources"] = "nlp", map[string]any{"cpu": 10}
			var j api.Job
			if status, body := c.request(s); status == http.StatusCreated && json.Unmarshal(body, &j) == nil {
				ids[i] = j.ID
			}
		})
	}
	c.await("the quota is full", func() (string, bool) { n := charged(); return fmt.Sprint(n), n == 30 })
	wg.Wait()
	live := func() (out []string) {
		for _, id := range ids {
			if id != "" {
				if s := c.job(id).State; s == api.Running || s == api.Starting {
					out = append(out, id)
				}
			}
		}
		return out
	}
	for _, id := range live() {
		for range 2 {
			wg.Go(func() { c.call(http.MethodPost, "/api/v1/jobs/"+id+"/stop", `{"grace":"0s"}`) })
		}
	}
	wg.Wait()
	c.await("the next ones fill it again", func() (string, bool) { n := charged(); return fmt.Sprint(n), n == 30 })
	if n := len(live()); n > 3 {
		t.Errorf("%d run where three may", n)
	}
	for _, id := range ids {
		if id != "" {
			wg.Go(func() { c.call(http.MethodPost, "/api/v1/jobs/"+id+"/stop", `{"grace":"0s"}`) })
		}
	}
	wg.Wait()
	c.await("nothing is charged", func() (string, bool) { n := charged(); return fmt.Sprint(n), n == 0 })
	c.idle()
}

// TestWhatATenantMayNot: the pool of others, a priority above its own, the queue of others
// and data that it has no access to are denied, whatever is free (attack 20).
func TestWhatATenantMayNot(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	tree := `{"queues":[{"name":"nlp","tenant":true,"pools":["gpu-pool"],"maxPriority":5},{"name":"vision","tenant":true,"access":["faces"]},{"name":"fast","parent":"vision"}]}`
	if status, body := c.call(http.MethodPut, "/api/v1/queues", tree); status >= 300 {
		t.Fatalf("status %d: %s", status, body)
	}
	for _, tc := range []struct{ what, more, where string }{
		{"another pool", `,"tenant":"nlp","pool":"cpu-pool"`, "/pool"},
		{"a priority above its own", `,"tenant":"nlp","pool":"gpu-pool","priority":6`, "/priority"},
		{"a queue of others", `,"tenant":"nlp","pool":"gpu-pool","queue":"fast"`, "/queue"},
		{"data that it has no access to", `,"tenant":"nlp","pool":"gpu-pool","data":["faces"]`, "/data/0"},
		{"a priority above all, of no tenant", `,"priority":1001`, "/priority"},
	} {
		status, body := c.request(`{"name":"x","command":["true"]` + tc.more + `}`)
		p := problemOf(body)
		if status != http.StatusForbidden || len(p.Errors) != 1 || p.Errors[0].Pointer != tc.where || p.Help == "" {
			t.Errorf("%s: status %d: %s", tc.what, status, clip(string(body)))
		}
	}
	c.idle()
}
