package hostile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestGPUsWaitForProof: a GPU goes to the next job only when nothing of the one before
// lives, also what left its session and ignores SIGTERM (P1, P2).
func TestGPUsWaitForProof(t *testing.T) {
	for _, o := range []options{{gpus: "fake:2x80GiB"}, {gpus: "fake:2x80GiB", fallback: true}} {
		t.Run(fmt.Sprintf("fallback=%v", o.fallback), func(t *testing.T) {
			if testing.Short() && o.fallback {
				return // a short run leaves it out
			}
			t.Parallel()
			c := start(t, o)
			two := []any{"resources", map[string]any{"gpus": 1}, "shutdownTimeout", "500ms"}
			first := c.submit(with(spec("first", 2, c.hostile, "family"), two...))
			c.await("the family is there", func() (string, bool) {
				n := len(c.strays())
				return fmt.Sprintf("%d processes\n%s", n, c.tell(first)), n >= 2*7
			})
			old := c.strays()
			// The second says what of the first it still sees.
			look := fmt.Sprintf("pgrep -f '^%s' || echo none", c.hostile)
			second := c.submit(with(spec("second", 2, "sh", "-c", look+"; echo gpus $CUDA_VISIBLE_DEVICES; sleep 1"), two...))
			j := c.job(second)
			if j.State != api.Queued || j.Reason == nil || j.Reason.Code == "" {
				t.Errorf("the second does not wait with a reason: %s", c.tell(second))
			}
			if w := c.troupe("why", second); !strings.Contains(w.out, "first") {
				t.Errorf("what blocks is not named: %s", w)
			}
			if r := c.troupe("stop", first, "--yes"); r.code != 0 {
				t.Errorf("%s", r)
			}
			for _, p := range c.strays() {
				if slices.ContainsFunc(old, func(q proc) bool { return q.pid == p.pid }) {
					t.Errorf("stop returned and %s lives", p)
				}
			}
			c.ended(first, api.Stopped, 0)
			c.ended(second, api.Succeeded, 0)
			out := c.troupe("logs", second).out
			if strings.Count(out, "none\n") != 2 || strings.Count(out, "gpus GPU-") != 2 {
				t.Errorf("the second started beside the first:\n%s", out)
			}
			c.idle()
		})
	}
}

// TestDevicesAreAPermutation: gangs of both GPUs come and go, and each holds both
// devices, each once (P1, P2, P8).
func TestDevicesAreAPermutation(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	c := start(t, options{gpus: "fake:2x80GiB"})
	all := []string{}
	for _, g := range c.node().GPUs {
		all = append(all, g.UUID)
	}
	slices.Sort(all)
	if len(all) != 2 || all[0] == all[1] {
		t.Fatalf("devices: %v", all)
	}
	for i := range rounds {
		name := fmt.Sprintf("gang-%d", i)
		g := get[api.Group](c, "pg", "create", "--name", name, "--bundles", "2", "--gpus", "1")
		g = get[api.Group](c, "pg", "wait", g.ID)
		var held []string
		for _, b := range g.Bundles {
			held = append(held, b.Devices...)
		}
		slices.Sort(held)
		if !slices.Equal(held, all) {
			t.Fatalf("round %d: the gang holds %v of %v", i, held, all)
		}
		if r := c.troupe("pg", "remove", g.ID, "--yes"); r.code != 0 {
			t.Fatalf("%s", r)
		}
	}
	c.idle()
}
