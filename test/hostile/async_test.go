package hostile

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// later is chain with asynchronous saves.
func later(name string, args ...string) map[string]any {
	return chain(name, append([]string{"--asynchronous"}, args...)...)
}

// TestAsyncSavesThatGoWrong: what one rank does in or after the middle of an
// asynchronous save costs that step at most, and a restore is exact (P4): the ranks
// compare what they load with what they compute.
func TestAsyncSavesThatGoWrong(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for _, f := range []struct {
		fault    string
		restarts int64
		lost     bool // step 3 must not be committed
	}{
		{fault: "none"},
		{fault: "raise", lost: true},
		{fault: "link", lost: true},
		{fault: "cursor", lost: true},
		{fault: "exit", lost: true},
		{fault: "die", restarts: 1},
		{fault: "die-after", restarts: 1},
		{fault: "exit-after"},
		{fault: "skip", lost: true},
		{fault: "leave", lost: true},
	} {
		t.Run("fault-"+f.fault, func(t *testing.T) {
			sub := *c
			sub.t = t
			id := sub.submit(later("later-"+f.fault, "--steps", "5", "--step-time", "0.1", "--size", "200000", "--fault", f.fault, "--at", "3"))
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
			ended := strings.HasPrefix(f.fault, "exit") || f.fault == "leave"
			if !ended && !strings.Contains(out, "step 5 committed") {
				t.Errorf("the next steps were not committed:\n%s", out)
			}
		})
	}
	c.idle()
}

// TestSavesWithoutSteps: ranks that report no step save all the same.
func TestSavesWithoutSteps(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for name, job := range map[string]map[string]any{
		"sync": chain("silent-sync", "--silent", "--steps", "4"), "async": later("silent-async", "--silent", "--steps", "4"),
	} {
		id := c.submit(job)
		c.ended(id, api.Succeeded, 0)
		if out := c.troupe("logs", id).out; !strings.Contains(out, "step 4 committed") {
			t.Errorf("%s: %s", name, out)
		}
	}
	c.idle()
}

// TestSaveDeadlineNamesTheRank: a rank that saves too late costs the step and not the
// job, and the event names it (P7).
func TestSaveDeadlineNamesTheRank(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for _, asynchronous := range []bool{false, true} {
		job := chain("late")
		if asynchronous {
			job = later("late-async")
		}
		job["command"] = append(job["command"].([]string), "--steps", "4", "--fault", "wait", "--at", "2")
		job["checkpoint"].(map[string]any)["saveDeadline"] = "1s"
		id := c.submit(job)
		c.ended(id, api.Succeeded, 0)
		out := c.troupe("logs", id).out
		if strings.Contains(out, "step 2 committed") || !strings.Contains(out, "done 4") {
			t.Errorf("%s", out)
		}
		if events := c.troupe("job", "events", id).out; !strings.Contains(events, "checkpoint-dropped") ||
			!strings.Contains(events, "rank 1 did not prepare it within 1s") {
			t.Errorf("%s", events)
		}
	}
	bad := later("bad")
	bad["checkpoint"].(map[string]any)["saveDeadline"] = "1ms"
	if r := c.trySubmit(bad); r.code == 0 || !strings.Contains(r.err, "saveDeadline") {
		t.Errorf("%s", r)
	}
	c.idle()
}

// TestAsyncStoreThatRefuses: a full or read-only store costs asynchronous steps, never
// the job, and the ranks are not held up.
func TestAsyncStoreThatRefuses(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for _, kind := range []string{"full", "read-only"} {
		store := filepath.Join(c.dir, "store-"+kind)
		mountSmall(t, store, "1m")
		args := []string{"--steps", "4", "--step-time", "0.05"}
		want := "read-only"
		if kind == "full" {
			args, want = append(args, "--size", "3000000"), "no space left"
		} else if err := syscall.Mount("", store, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		job := later(kind, args...)
		job["checkpoint"].(map[string]any)["store"] = store
		id := c.submit(job)
		c.ended(id, api.Succeeded, 0)
		out := c.troupe("logs", id).out
		if strings.Contains(out, "committed") || strings.Count(out, want) < 2 || !strings.Contains(out, "done 4") {
			t.Errorf("%s: %s", kind, out)
		}
		if events := c.troupe("job", "events", id).out; !strings.Contains(events, want) {
			t.Errorf("no event says why: %s", events)
		}
	}
	c.idle()
}

// TestKilledDuringAsyncSaves kills rank, saver, shim and agent at moments of
// asynchronous saves, several times; what is restored is the newest committed step.
func TestKilledDuringAsyncSaves(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	for i, victim := range []string{"rank", "saver", "shim", "saver", "rank"} {
		id := c.submit(later(fmt.Sprintf("killed-%s-%d", victim, i), "--steps", "60", "--step-time", "0.03", "--size", "2000000"))
		c.await("steps are committed", func() (string, bool) {
			j := c.job(id)
			return fmt.Sprint(j.Committed), j.Committed != nil && *j.Committed >= int64(2+i)
		})
		c.killOf(id, victim)
		c.ended(id, api.Succeeded, 0)
		out := c.troupe("logs", id).out
		if strings.Contains(out, "WRONG") || !strings.Contains(out, "step 60 committed") {
			t.Errorf("%s: %s", victim, clip(out))
		}
	}
	c.idle()
}

// killOf ends one process of a job by SIGKILL.
func (c *cluster) killOf(id, victim string) {
	c.t.Helper()
	c.await("a "+victim+" to kill", func() (string, bool) {
		for _, pid := range c.victims(id, victim) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				return "", true
			}
		}
		return "none", false
	})
}

func (c *cluster) victims(id, victim string) []int {
	if victim == "rank" {
		return slices.Collect(maps.Values(ranksOf(id)))
	}
	var list []int
	for _, shim := range c.shims() {
		switch {
		case !strings.Contains(shim.cmd, id):
		case victim == "shim":
			list = append(list, shim.pid)
		default:
			for _, p := range processes() {
				if strings.HasPrefix(p.cmd, "troupe-saver ") && parent(p.pid) == shim.pid {
					list = append(list, p.pid)
				}
			}
		}
	}
	return list
}

func parent(pid int) int {
	st, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := bytes.Cut(st, []byte(") "))
	f := strings.Fields(string(after))
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(f[1])
	return n
}
