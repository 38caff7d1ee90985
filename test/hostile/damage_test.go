package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func steps(c *cluster, run string) []api.Checkpoint {
	c.t.Helper()
	return get[api.List[api.Checkpoint]](c, "checkpoint", "list", run).Items
}

// standing are the committed steps, the newest first.
func standing(c *cluster, run string) (out []api.Checkpoint) {
	c.t.Helper()
	for _, k := range steps(c, run) {
		if k.State == "committed" {
			out = append(out, k)
		}
	}
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j].Step > out[i].Step {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		t.Fatalf("flip a bit of %s: %v", path, err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedCheckpoints: whatever happened to the newest step, the run goes on from the
// newest whole one, all ranks from the same, and events say it (P4, P7).
func TestDamagedCheckpoints(t *testing.T) {
	t.Parallel()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		name    string
		damage  func(t *testing.T, newest, run string)
		restore int64 // step that is used; 0: from scratch, 5: nothing was damaged
		same    bool  // no step is rolled back
	}{
		{name: "flipped-bit", restore: 4, damage: func(t *testing.T, d, _ string) { flip(t, d+"/rank-1/model.txt") }},
		{name: "truncated", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.Truncate(d+"/rank-0/model.txt", 3)) }},
		{name: "longer", restore: 4, damage: func(t *testing.T, d, _ string) {
			f, err := os.OpenFile(d+"/rank-0/model.txt", os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString("x")
			must(t, err)
			must(t, f.Close())
		}},
		{name: "file-deleted", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.Remove(d+"/rank-1/model.txt")) }},
		{name: "rank-deleted", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.RemoveAll(d+"/rank-1")) }},
		{name: "link", restore: 4, damage: func(t *testing.T, d, _ string) {
			must(t, os.Rename(d+"/rank-1/model.txt", d+"/elsewhere"))
			must(t, os.Symlink("../elsewhere", d+"/rank-1/model.txt"))
		}},
		{name: "fifo", restore: 4, damage: func(t *testing.T, d, _ string) {
			must(t, os.Remove(d+"/rank-1/model.txt"))
			must(t, mkfifo(d+"/rank-1/model.txt"))
		}},
		{name: "manifest-flipped", restore: 4, damage: func(t *testing.T, d, _ string) { flip(t, d+"/manifest.json") }},
		{name: "manifest-empty", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.Truncate(d+"/manifest.json", 0)) }},
		{name: "manifest-deleted", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.Remove(d+"/manifest.json")) }},
		{name: "manifest-other", restore: 4, damage: func(t *testing.T, d, run string) {
			other, err := filepath.Glob(run + "/step-4-*/manifest.json")
			must(t, err)
			b, err := os.ReadFile(other[0])
			must(t, err)
			must(t, os.WriteFile(d+"/manifest.json", b, 0o600))
		}},
		{name: "step-deleted", restore: 4, damage: func(t *testing.T, d, _ string) { must(t, os.RemoveAll(d)) }},
		{name: "step-is-a-file", restore: 4, damage: func(t *testing.T, d, _ string) {
			must(t, os.RemoveAll(d))
			must(t, os.WriteFile(d, nil, 0o600))
		}},
		{name: "committed-mark-deleted", restore: 5, same: true, damage: func(t *testing.T, d, _ string) { must(t, os.Remove(d+"/committed.json")) }},
		{name: "stray-file", restore: 5, same: true, damage: func(t *testing.T, d, _ string) {
			must(t, os.WriteFile(d+"/rank-0/stray", []byte("x"), 0o600))
		}},
		{name: "all-damaged", restore: 0, damage: func(t *testing.T, _, run string) {
			files, err := filepath.Glob(run + "/step-*/rank-0/model.txt")
			must(t, err)
			for _, f := range files {
				flip(t, f)
			}
		}},
		{name: "all-steps-deleted", restore: 0, damage: func(t *testing.T, _, run string) {
			dirs, err := filepath.Glob(run + "/step-*")
			must(t, err)
			for _, d := range dirs {
				must(t, os.RemoveAll(d))
			}
		}},
	}
	c := start(t, options{})
	for i, k := range cases {
		if testing.Short() && i%3 != 0 {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			run := "damage-" + k.name
			id := sub.submit(chain(run, "--steps", "5"))
			sub.ended(id, api.Succeeded, 0)
			list := standing(&sub, run)
			if len(list) != 3 || list[0].Step != 5 {
				t.Fatalf("%+v", list)
			}
			k.damage(t, list[0].Dir, filepath.Dir(list[0].Dir))
			if k.restore != 5 {
				if r := sub.troupe("checkpoint", "verify", run); r.code != api.ExitFailed {
					t.Errorf("verify finds nothing: %s", r)
				}
			}
			id = sub.submit(chain(run, "--steps", "6"))
			j := sub.ended(id, api.Succeeded, 0)
			out := sub.troupe("logs", id).out
			if n := strings.Count(out, fmt.Sprintf("resumes %d\n", k.restore)); n != 2 || strings.Contains(out, "WRONG") {
				t.Errorf("want both ranks to resume step %d:\n%s", k.restore, out)
			}
			if !strings.Contains(out, "step 6 committed") {
				t.Errorf("nothing is saved any more")
			}
			for _, a := range j.Attempts {
				if a.Cause != "" && a.Cause != api.CauseNone {
					t.Errorf("attempt %d: a damaged checkpoint was charged", a.Number)
				}
			}
			ev := sub.events(id)
			if k.same == strings.Contains(ev, "restore-damaged") {
				t.Errorf("events:\n%s", ev)
			}
			if k.restore < 5 && len(j.Attempts) < 2 {
				t.Errorf("no attempt says that it found damage: %s", ev)
			}
		})
	}
	c.idle()
}

// TestStoreGone: a store that is not there any more proves nothing about its steps. The
// job is tried again, a bounded number of times, and says why (P7).
func TestStoreGone(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	store := filepath.Join(c.dir, "store")
	at := func(m map[string]any) map[string]any {
		m["checkpoint"].(map[string]any)["store"] = store
		return m
	}
	id := c.submit(at(chain("gone", "--steps", "5")))
	c.ended(id, api.Succeeded, 0)
	if err := os.Rename(store, store+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	id = c.submit(with(at(chain("gone", "--steps", "6")), "restart", map[string]any{"infrastructure": 1}))
	j := c.ended(id, api.Failed, api.ExitRetry)
	if j.Reason == nil || !strings.Contains(j.Reason.Text, "store") || !strings.Contains(c.events(id), "restore-unread") {
		t.Errorf("%s", c.tell(id))
	}
	if l := standing(c, "gone"); len(l) != 3 {
		t.Errorf("steps were given up though nothing was learned about them: %+v", l)
	}
	// Back again, and all is as before.
	_ = os.RemoveAll(store)
	if err := os.Rename(store+"-elsewhere", store); err != nil {
		t.Fatal(err)
	}
	id = c.submit(at(chain("gone", "--steps", "6")))
	c.ended(id, api.Succeeded, 0)
	if out := c.troupe("logs", id).out; strings.Count(out, "resumes 5\n") != 2 {
		t.Errorf("%s", out)
	}
	c.idle()
}
