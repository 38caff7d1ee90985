package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func (b requestBuilder) roles(least int64, roles ...api.Role) requestBuilder {
	b.request.Spec.Roles, b.request.Spec.Min = roles, least
	return b
}

func TestRoles(t *testing.T) {
	t1 := api.Role{Name: "t1", Bundles: 6, Min: 2}
	t2 := api.Role{Name: "t2", Bundles: 2, Min: 2}
	for _, tc := range []struct {
		name    string
		devices int
		cpu     unit.MilliCPU
		least   int64
		chosen  string
	}{
		{"all of it", 8, 32, 5, "[]"},
		{"as much as there is room for, and all of the role that must be whole", 5, 32, 5, "[0 1 2 6 7]"},
		{"not less than the group's minimum", 4, 32, 5, "waits"},
		{"not less than the minimum of each role", 3, 32, 1, "waits"},
		{"the minimum of each role", 4, 32, 1, "[0 1 6 7]"},
		{"never with the wrong role", 6, 1, 5, "waits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := aNode("n1").gpus(tc.devices, 72)
			n.node.FreeCPU = cpus(tc.cpu).CPU
			second := api.Bundle{Resources: api.Resources{GPUs: 1, CPU: cpus(1).CPU}}
			r := gang("a", 6, gpus(1)).and(second, second).roles(tc.least, t1, t2)
			d := Plan(cluster(n).pending(r), epoch)[0]
			got := fmt.Sprint(d.Chosen)
			if d.Bundles == nil {
				got = "waits"
			}
			if got != tc.chosen {
				t.Fatalf("%s, want %s: %+v", got, tc.chosen, d)
			}
			for i, b := range d.Bundles {
				if len(d.Chosen) > 0 && b.Bundle != d.Chosen[i] {
					t.Errorf("bundle %d in the place of %d", b.Bundle, d.Chosen[i])
				}
			}
		})
	}
}

// A gang that is still being put together is not looked at.
func TestIncompleteGang(t *testing.T) {
	r := NewPlanner().Plan(cluster(aNode("n1").gpus(8, 72)).pending(gang("a", 3, gpus(1)).roles(4)), epoch)
	if r.All()[0].Bundles != nil {
		t.Fatal("placed")
	}
	if why := r.Why("a"); why[0].Code != api.ReasonBadSpec || !strings.Contains(why[0].Text, "gang incomplete 3/4") {
		t.Errorf("%+v", why)
	}
}

// Of all the ways to leave bundles out, the one with most bundles is found where all are
// tried, and an equal number of a wide group is found one role after the other.
func TestPropRolesKeepTheirMinimums(t *testing.T) {
	fewer := 0
	checkUntil(t, func() bool { return fewer > 0 }, func(t *rapid.T) {
		s := &Snapshot{}
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			s.Nodes = append(s.Nodes, new(aNode(fmt.Sprintf("n%d", i)).gpus(rapid.IntRange(0, 4).Draw(t, "gpus"), 72).node))
		}
		r := gang("a", 0, api.Bundle{})
		wide := rapid.Int64Range(1, 3).Draw(t, "wide") * rapid.SampledFrom([]int64{1, 20}).Draw(t, "times")
		for i := range rapid.IntRange(1, 3).Draw(t, "roles") {
			role := api.Role{Name: fmt.Sprint(i), Bundles: rapid.Int64Range(1, wide).Draw(t, "bundles")}
			role.Min = rapid.Int64Range(0, role.Bundles).Draw(t, "min")
			b := rapid.SampledFrom([]api.Bundle{gpus(1), gpus(2), cpus(16)}).Draw(t, "bundle")
			r = r.and(slices.Repeat([]api.Bundle{b}, int(role.Bundles))...)
			r.request.Spec.Roles = append(r.request.Spec.Roles, role)
		}
		r.request.Spec.Min = rapid.Int64Range(0, int64(len(r.request.Spec.Bundles))).Draw(t, "least")
		s.pending(r)
		d := Plan(s, epoch)[0]
		if d.Bundles == nil {
			return
		}
		chosen := d.Chosen
		if chosen == nil {
			for i := range r.request.Spec.Bundles {
				chosen = append(chosen, int64(i))
			}
		} else {
			fewer++
		}
		if int64(len(chosen)) < r.request.Spec.Min || len(chosen) != len(d.Bundles) || !slices.IsSorted(chosen) {
			t.Fatalf("%d of at least %d: %v", len(chosen), r.request.Spec.Min, chosen)
		}
		first := int64(0)
		for i := range r.request.Spec.Roles {
			role := &r.request.Spec.Roles[i]
			var n int64
			for _, c := range chosen {
				if c >= first && c < first+role.Bundles {
					n++
				}
			}
			if n < minimum(role) {
				t.Fatalf("role %d has %d of at least %d", i, n, minimum(role))
			}
			first += role.Bundles
		}
		b := newBook(s)
		for i, at := range d.Bundles {
			if err := b.hold("a", r.request.Spec.Bundles[chosen[i]], "", at); err != nil {
				t.Fatal(err)
			}
		}
	})
	if fewer == 0 {
		t.Error("no group ever started with fewer bundles; the property proved nothing")
	}
}
