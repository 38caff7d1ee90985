package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestQueueRoutes(t *testing.T) {
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		says                     string // in the answer, or what was written
	}{
		{"list", "GET", "/api/v1/queues", "", 200, `"limit":{"gpu":4000}`},
		{"one", "GET", "/api/v1/queues/short", "", 200, `"parent":"nlp"`},
		{"unknown", "GET", "/api/v1/queues/slow", "", 404, "there is no queue slow"},
		{"order is kept", "GET", "/api/v1/queues/-/order", "", 200, `"group":"z"`},
		{"usage", "GET", "/api/v1/usage?by=user&since=2030-05-01T12:30:00Z", "", 200, "user12:30"},
		{"usage by nonsense", "GET", "/api/v1/usage?by=node", "", 422, "none of tenant, queue, user"},
		{"usage since nonsense", "GET", "/api/v1/usage?since=noon", "", 422, "query/since"},
		{"put", "PUT", "/api/v1/queues", `{"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":8000}}]}`, 200, "queues"},
		{"wrong field", "PUT", "/api/v1/queues", `{"queues":[{"name":"a","guarantee":{}}]}`, 422, "/queues/0/guarantee"},
		{"too large", "PUT", "/api/v1/queues", `{"queues":[{"name":"a","limit":{"gpu":9223372036854775808}}]}`, 422, "/queues/0/limit"},
		{"a fraction", "PUT", "/api/v1/queues", `{"queues":[{"name":"a","limit":{"gpu":1.5}}]}`, 422, "/queues/0/limit"},
		{"no number", "PUT", "/api/v1/queues", `{"queues":[{"name":"a","limit":{"gpu":NaN}}]}`, 400, "no JSON"},
		{"pause", "POST", "/api/v1/queues/nlp/pause", `{"reason":"upgrade"}`, 200, "pause nlp: upgrade"},
		{"pause without a reason", "POST", "/api/v1/queues/nlp/pause", "", 200, "pause nlp: paused on request"},
		{"resume", "POST", "/api/v1/queues/nlp/resume", "", 200, "pause nlp: "},
		{"another name in the body", "PUT", "/api/v1/reservations/demo", `{"name":"other"}`, 422, "the name in the path"},
		{"reservation", "PUT", "/api/v1/reservations/demo", `{"count":2}`, 200, "reservation demo"},
		{"hold", "POST", "/api/v1/jobs/digits-7f3k/hold", `{"reason":"not yet"}`, 200, "hold digits-7f3k"},
		{"suspend", "POST", "/api/v1/jobs/digits-7f3k/suspend", `{"deadline":"5m"}`, 200, "suspend 5m0s digits-7f3k"},
		{"a deadline for a hold", "POST", "/api/v1/jobs/digits-7f3k/hold", `{"deadline":"5m"}`, 422, "/deadline"},
		{"edit", "PATCH", "/api/v1/jobs/digits-7f3k", `{"priority":5}`, 200, "edit digits-7f3k"},
		{"edit too much", "PATCH", "/api/v1/jobs/digits-7f3k", `{"priority":1000001}`, 422, "/priority"},
		{"edit what cannot be", "PATCH", "/api/v1/jobs/digits-7f3k", `{"ranks":5}`, 422, "/ranks"},
		{"two changes to look into", "GET", "/api/v1/why/job/a?whatIf=ranks%3D8&whatIf=level%3Drack", "", 200, `{"change":"ranks=8","now":false},{"change":"level=rack","now":false}`},
		{"a list within one change", "GET", "/api/v1/why/job/a?whatIf=x%3Da%2Cb", "", 200, `{"change":"x=a,b","now":false}]`},
		{"too many changes to look into", "GET", "/api/v1/why/job/a?" + strings.Repeat("whatIf=any&", 17), "", 422, "query/whatIf"},
		{"requeue", "POST", "/api/v1/jobs/digits-7f3k/requeue", "", 201, "requeue digits-7f3k"},
		{"outlook", "POST", "/api/v1/outlook", `{"name":"x","command":["true"],"ranks":3}`, 200, "It would start now."},
		{"an uid in a spec", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"uid":0}`, 422, "/uid"},
		{"a group id in a spec", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"groups":["docker"]}`, 422, "/groups"},
		{"negative devices", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"resources":{"gpus":-1}}`, 422, "/resources/gpus"},
		{"overflowing devices", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"resources":{"gpus":9223372036854775808}}`, 422, "/resources/gpus"},
		{"overflowing float", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"resources":{"gpus":1e309}}`, 422, "/resources/gpus"},
		{"a million ranks", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"ranks":1000000}`, 422, "/ranks"},
		{"overflowing memory", "POST", "/api/v1/jobs", `{"name":"x","command":["true"],"resources":{"memory":"99999999999999999999Gi"}}`, 422, "/resources/memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := populated()
			s := serverFor(t, b, nil)
			w := ask(s.guard, c.method, c.path, adminToken, c.body)
			if w.Code != c.status {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			if all := w.Body.String() + strings.Join(b.writes, "; "); !strings.Contains(all, c.says) {
				t.Errorf("%s says %s, wrote %v; want %q", c.path, w.Body, b.writes, c.says)
			}
			if c.status >= http.StatusBadRequest && len(b.writes) > 0 {
				t.Errorf("it was refused and wrote %v", b.writes)
			}
		})
	}
}
