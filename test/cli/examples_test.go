package cli

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// example builds an example program of the tree.
func (h *home) example(name string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "../../examples/"+name).CombinedOutput(); err != nil {
		h.t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

func TestExampleSDK(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up("--name", "box")
	r := h.program(h.example("sdk-go"))
	for _, want := range []string{
		"bundle 0 on box\n", "bundle 1 on box\n", "hello from rank 0 of 2\n", "hello from rank 1 of 2\n", ": SUCCEEDED\n", ": REMOVED\n",
	} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("%q is missing: %v", want, r)
		}
	}
	eventually(t, "a group is left", func() error {
		if out := h.want(0, "pg", "list").out; strings.Contains(out, "PLACED") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	h.want(0, "down", "--yes")
	if r := h.program(filepath.Join(h.dir, "sdk-go")); r.code != 1 || !strings.Contains(r.errout, "no cluster is known here") {
		t.Errorf("without a cluster: %v", r)
	}
}

func TestExampleActors(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.program(h.example("actors"))
	want := regexp.MustCompile(`^counter is 101: ALIVE, 0 restarts, generation (\d+)
counter is 102: ALIVE, 0 restarts, generation (\d+)
killed process of generation (\d+)
counter is 101: ALIVE, 1 restarts, generation (\d+)
actor counter is DEAD
$`)
	m := want.FindStringSubmatch(r.out)
	if r.code != 0 || m == nil || m[1] != m[2] || m[2] != m[3] || m[4] <= m[3] {
		t.Fatalf("%v", r)
	}
	var l api.List[api.Actor]
	if err := one(h.want(0, "actor", "list", "-o", "json").out, &l); err != nil || len(l.Items) != 1 || l.Items[0].State != "DEAD" {
		t.Errorf("%v %+v", err, l)
	}
}

// An actor seen from the command line: alive, killed from outside, restarting, alive
// under a higher generation, and ended for good.
func TestActorsByHand(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up("--name", "box")
	c := h.client()
	spec := api.JobSpec{
		Name: "keeper", Kind: api.KindActor, Command: []string{h.example("actors"), "actor-host"}, Ranks: 1,
		Actor: &api.ActorSpec{Name: "keeper", Class: "counter", MaxRestarts: 1},
	}
	if _, err := c.SubmitJob(t.Context(), spec, ""); err != nil {
		t.Fatal(err)
	}
	get := func() api.Actor {
		a, err := c.Actor(t.Context(), "keeper")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	alive := func(restarts int64) (a api.Actor) {
		eventually(t, "the actor is not alive", func() error {
			if a = get(); a.State != "ALIVE" || a.Restarts != restarts || a.PID == 0 {
				return fmt.Errorf("%+v", a)
			}
			return nil
		})
		return a
	}
	first := alive(0)
	if out := h.want(0, "actor", "list").out; !regexp.MustCompile(`(?m)^keeper-[a-z0-9]+ +keeper +counter +ALIVE +box +\d+ +0 +\d+$`).MatchString(out) {
		t.Errorf("%s", out)
	}
	h.want(api.ExitUsage, "actor", "kill", "keeper") // nobody can be asked
	h.want(0, "actor", "kill", "keeper", "--restart", "--yes")
	second := alive(1)
	if second.Generation <= first.Generation || second.PID == first.PID {
		t.Errorf("first %+v, second %+v", first, second)
	}
	r := h.want(0, "actor", "kill", "keeper", "--yes", "-o", "json")
	got, _, err := shapeOf(r.out)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "actor-kill", got)
	if a := get(); a.State != "DEAD" {
		t.Errorf("%+v", a)
	}
	h.want(api.ExitNotFound, "actor", "kill", "nobody", "--yes")
}
