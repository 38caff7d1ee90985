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

// chain is a job whose ranks walk a hash chain and save every step; see ranks.py.
func chain(name string, args ...string) map[string]any {
	script, err := filepath.Abs("ranks.py")
	if err != nil {
		panic(err)
	}
	argv := append([]string{pythonBin, "-u", script}, args...)
	return with(spec(name, 2, argv...), "checkpoint", map[string]any{"interval": "1steps", "keepLast": 3},
		"restart", map[string]any{"user": 2, "infrastructure": 3})
}

// TestSavesThatGoWrong: what one rank does in the middle of a save costs that step, for
// all ranks, and nothing else (P4).
func TestSavesThatGoWrong(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for _, f := range []struct {
		fault    string
		restarts int64
		state    api.JobState
		code     int64
		lost     bool // step 3 must not be committed
	}{
		{fault: "raise", lost: true},
		{fault: "link", lost: true},
		{fault: "unlink", lost: true},
		{fault: "cursor", lost: true},
		{fault: "exit", lost: true},
		{fault: "die", restarts: 1},
		{fault: "skip", lost: true},
		{fault: "leave", lost: true},
	} {
		t.Run(f.fault, func(t *testing.T) {
			sub := *c
			sub.t = t
			id := sub.submit(chain("saves-"+f.fault, "--steps", "5", "--fault", f.fault, "--at", "3"))
			j := sub.ended(id, api.Succeeded, 0)
			if j.Attempt != f.restarts {
				t.Errorf("%d restarts, want %d: %s", j.Attempt, f.restarts, sub.tell(id))
			}
			out := sub.troupe("logs", id).out
			if f.lost && strings.Contains(out, "step 3 committed") {
				t.Errorf("a step was committed that a rank did not save:\n%s", out)
			}
			if strings.Contains(out, "WRONG") || !strings.Contains(out, "done 5") {
				t.Errorf("%s", out)
			}
			if f.fault != "exit" && f.fault != "leave" && !strings.Contains(out, "step 5 committed") {
				t.Errorf("the next steps were not committed:\n%s", out)
			}
		})
	}
	c.idle()
}

// TestStoreThatRefuses: a full, read-only or vanished store costs steps, never the job.
func TestStoreThatRefuses(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	mount := func(t *testing.T, size string) string {
		dir := filepath.Join(c.dir, "store-"+filepath.Base(t.Name()))
		mountSmall(t, dir, size)
		return dir
	}
	at := func(m map[string]any, store string) map[string]any {
		m["checkpoint"].(map[string]any)["store"] = store
		return m
	}
	t.Run("full", func(t *testing.T) {
		sub := *c
		sub.t = t
		store := mount(t, "4m")
		// Each rank writes 3 MB: the second finds no place, and its own write raises. That
		// costs the step, not the job.
		id := sub.submit(at(chain("full", "--steps", "4", "--size", "3000000"), store))
		sub.ended(id, api.Succeeded, 0)
		if out := sub.troupe("logs", id).out; strings.Count(out, "dropped") != 8 || strings.Count(out, "done 4") != 2 {
			t.Errorf("%s", out)
		}
		// What the run left half written is garbage and does not stay: a run whose files
		// fit finds the place.
		id = sub.submit(at(chain("fits", "--steps", "4", "--size", "100000"), store))
		sub.ended(id, api.Succeeded, 0)
	})
	t.Run("read-only", func(t *testing.T) {
		sub := *c
		sub.t = t
		store := mount(t, "4m")
		if err := syscall.Mount("", store, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		id := sub.submit(at(chain("readonly", "--steps", "4"), store))
		sub.ended(id, api.Succeeded, 0)
		out := sub.troupe("logs", id).out
		if strings.Count(out, "read-only") < 2 || !strings.Contains(out, "done 4") {
			t.Errorf("%s", out)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		sub := *c
		sub.t = t
		store := filepath.Join(c.dir, "vanishing")
		id := sub.submit(at(chain("vanishes", "--steps", "80", "--step-time", "0.02"), store))
		sub.await("steps are committed", func() (string, bool) {
			j := sub.job(id)
			return fmt.Sprint(j.Committed), j.Committed != nil && *j.Committed >= 10
		})
		if err := os.RemoveAll(store); err != nil && !os.IsExist(err) {
			t.Logf("remove: %v", err) // ranks write meanwhile
		}
		sub.ended(id, api.Succeeded, 0)
		out := sub.troupe("logs", id).out
		if !strings.Contains(out, "step 80 committed") {
			t.Errorf("the job did not save again:\n%s", clip(out))
		}
	})
	c.idle()
}
