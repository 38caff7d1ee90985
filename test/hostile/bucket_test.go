package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/test/s3"
)

// bucket is a cluster whose jobs save to a real S3 server, through a proxy that breaks
// requests on order. Not parallel: credentials come with the environment.
func bucket(t *testing.T) (*cluster, *s3.Server, *s3.Proxy) {
	t.Helper()
	server := s3.Start(t)
	return start(t, options{}), server, s3.NewProxy(t, server)
}

func (c *cluster) saveTo(job map[string]any, store string) map[string]any {
	job["checkpoint"].(map[string]any)["store"] = store
	return job
}

// TestBucketKills kills rank, saver and shim in the middle of saves to a bucket, again and
// again. What is restored is the newest committed step, exact: ranks.py compares (P4).
func TestBucketKills(t *testing.T) {
	c, server, proxy := bucket(t)
	for i, victim := range []string{"saver", "rank", "shim", "saver"} {
		name := fmt.Sprintf("bucket-%s-%d", victim, i)
		id := c.submit(c.saveTo(chain(name, "--steps", "25", "--step-time", "0.02", "--size", "300000"), server.Store("runs", proxy)))
		c.await("steps are committed", func() (string, bool) {
			j := c.job(id)
			return c.tell(id), j.Committed != nil && *j.Committed >= int64(3+i)
		})
		// In the middle of an upload, not between two.
		hits := proxy.Hits.Load()
		stop := proxy.Inject(s3.Fault{Method: "PUT", Match: "rank-0/padding.bin", Nth: 1, Before: func() { c.killOf(id, victim) }})
		c.await("an upload is under way", func() (string, bool) { return c.tell(id), proxy.Hits.Load() > hits })
		stop()
		c.ended(id, api.Succeeded, 0)
		out := c.troupe("logs", id).out
		if strings.Contains(out, "WRONG") || !strings.Contains(out, "step 25 committed") {
			t.Errorf("%s: %s", victim, clip(out))
		}
		if r := c.troupe("checkpoint", "verify", name); r.code != 0 {
			t.Errorf("%s: verify: %+v", victim, r)
		}
	}
	c.idle()
}

// TestBucketThatFails: a bucket that is away, refuses or forgets answers costs steps, and
// never the job or a byte.
func TestBucketThatFails(t *testing.T) {
	c, server, proxy := bucket(t)
	t.Run("refuses", func(t *testing.T) {
		sub := *c
		sub.t = t
		defer proxy.Inject(s3.Fault{Method: "PUT", Match: "/rank-", Status: 403, Code: "AccessDenied"})()
		id := sub.submit(sub.saveTo(chain("refused", "--steps", "4"), server.Store("runs", proxy)))
		sub.ended(id, api.Succeeded, 0)
		out := sub.troupe("logs", id).out
		if !strings.Contains(out, "done 4") || strings.Contains(out, "committed") || !strings.Contains(out, "the credentials of this node may not do it") {
			t.Errorf("%s", clip(out))
		}
	})
	t.Run("away and back", func(t *testing.T) {
		sub := *c
		sub.t = t
		id := sub.submit(sub.saveTo(chain("away", "--steps", "400", "--step-time", "0.02"), server.Store("runs", proxy)))
		sub.await("steps are committed", func() (string, bool) {
			j := sub.job(id)
			return sub.tell(id), j.Committed != nil && *j.Committed >= 3
		})
		stop := proxy.Inject(s3.Fault{Reset: true})
		before := *sub.job(id).Committed
		sub.await("a step was dropped", func() (string, bool) {
			return sub.tell(id), strings.Contains(sub.troupe("logs", id).out, "refused:") || strings.Contains(sub.troupe("logs", id).out, "dropped:")
		})
		stop()
		sub.await("it saves again", func() (string, bool) {
			j := sub.job(id)
			return sub.tell(id), j.Committed != nil && *j.Committed > before+3
		})
		sub.troupe("job", "stop", id, "--yes", "--grace", "1s")
		if out := sub.troupe("logs", id).out; strings.Contains(out, "WRONG") {
			t.Errorf("%s", clip(out))
		}
		// Cut off between two saves or in one, the run goes on from what is committed.
		id = sub.submit(sub.saveTo(chain("away", "--steps", "5"), server.Store("runs", proxy)))
		sub.ended(id, api.Succeeded, 0)
		if out := sub.troupe("logs", id).out; strings.Contains(out, "WRONG") || strings.Contains(out, "resumes 0") {
			t.Errorf("%s", clip(out))
		}
	})
	t.Run("answers are lost", func(t *testing.T) {
		sub := *c
		sub.t = t
		var stops []func()
		for _, what := range []string{"manifest.json", "committed.json", "model.txt"} {
			for nth := 1; nth <= 9; nth += 4 {
				stops = append(stops, proxy.Inject(s3.Fault{Method: "PUT", Match: what, Nth: nth, Lose: true}))
			}
		}
		id := sub.submit(sub.saveTo(chain("lost", "--steps", "12"), server.Store("runs", proxy)))
		sub.ended(id, api.Succeeded, 0)
		for _, stop := range stops {
			stop()
		}
		out := sub.troupe("logs", id).out
		for step := 1; step <= 12; step++ {
			if strings.Count(out, fmt.Sprintf("step %d committed", step)) != 2 {
				t.Errorf("step %d did not commit on both ranks:\n%s", step, clip(out))
			}
		}
	})
	t.Run("damaged", func(t *testing.T) {
		sub := *c
		sub.t = t
		id := sub.submit(sub.saveTo(chain("damaged", "--steps", "6"), server.Store("runs", proxy)))
		sub.ended(id, api.Succeeded, 0)
		dirs, err := filepath.Glob(server.File("runs/damaged/step-6-*"))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		file := filepath.Join(dirs[0], "rank-1/model.txt")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := sub.troupe("checkpoint", "verify", "damaged", "6"); r.code != 1 || !strings.Contains(r.out, "DAMAGED") {
			t.Errorf("verify: %+v", r)
		}
		id = sub.submit(sub.saveTo(chain("damaged", "--steps", "8"), server.Store("runs", proxy)))
		sub.ended(id, api.Succeeded, 0)
		if out := sub.troupe("logs", id).out; !strings.Contains(out, "resumes 5") {
			t.Errorf("%s", clip(out))
		}
		if out := sub.troupe("checkpoint", "list", "damaged").out; !strings.Contains(out, "quarantined") {
			t.Errorf("%s", out)
		}
	})
	c.idle()
}

// TestBucketUploadIsACost: where ranks go on while a step is uploaded, the time that it
// takes until the commit is measured, weighs in the interval and is shown.
func TestBucketUploadIsACost(t *testing.T) {
	c, server, proxy := bucket(t)
	defer proxy.Inject(s3.Fault{Method: "PUT", Match: "/rank-", Delay: 200 * time.Millisecond})()
	job := c.saveTo(chain("uploads", "--steps", "12", "--step-time", "0.3", "--asynchronous"), server.Store("runs", proxy))
	id := c.submit(job)
	c.ended(id, api.Succeeded, 0)
	var l api.CheckpointList
	r := c.troupe("checkpoint", "list", "uploads", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &l); err != nil || r.code != 0 || len(l.Items) == 0 {
		t.Fatalf("%+v: %v", r, err)
	}
	if s := l.Saving; s == nil || s.Interval != "1steps" || s.Upload.D() < 200*time.Millisecond || s.Saves == 0 || s.Best < s.Upload {
		t.Errorf("saving: %+v", s)
	}
	for _, args := range [][]string{{"checkpoint", "list", "uploads"}, {"job", "get", id}} {
		if out := c.troupe(args...).out; !strings.Contains(out, "every 1steps; ") || !strings.Contains(out, " more to be committed") {
			t.Errorf("%v says\n%s", args, out)
		}
	}
	if out := c.troupe("checkpoint", "list").out; strings.Contains(out, "saves ") {
		t.Errorf("the interval of which run?\n%s", out)
	}
	c.idle()
}
