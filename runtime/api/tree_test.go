package api

import (
	"strings"
	"testing"
)

func TestTreePath(t *testing.T) {
	tree := NewTree([]*Queue{
		{Name: "science", Tenant: true},
		{Name: "nlp", Parent: "science", Tenant: true},
		{Name: "nlp-short", Parent: "nlp"},
		{Name: "spot"},
	})
	for _, c := range []struct{ name, tenant, queue, want string }{
		{"a tenant alone", "nlp", "", "nlp science"},
		{"the default queue of a tenant is the tenant", "nlp", "default", "nlp science"},
		{"a queue of its tenant", "nlp", "nlp-short", "nlp-short nlp science"},
		{"a queue of a tenant below", "science", "nlp-short", "nlp-short nlp science"},
		{"a queue names its tenant by itself", "default", "nlp-short", "nlp-short nlp science"},
		{"nobody's queue and the tenant", "nlp", "spot", "spot nlp science"},
		{"nobody's queue", "default", "spot", "spot"},
		{"nothing named", "", "", ""},
		{"the defaults", "default", "default", ""},
		{"no such queue", "nlp", "slow", `no queue "slow"`},
		{"no such tenant", "vision", "default", `no tenant "vision"`},
		{"a queue is no tenant", "spot", "default", `"spot" is a queue and no tenant`},
		{"a tenant is no queue", "default", "nlp", `"nlp" is a tenant and no queue`},
	} {
		var names []string
		path, err := tree.Path(c.tenant, c.queue)
		for _, q := range path {
			names = append(names, q.Name)
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	other := NewTree([]*Queue{{Name: "a", Tenant: true}, {Name: "b", Tenant: true}, {Name: "q", Parent: "a"}})
	if _, err := other.Path("b", "q"); err == nil || !strings.Contains(err.Error(), `belongs to tenant "a"`) {
		t.Errorf("another tenant's queue: %v", err)
	}
	loop := NewTree([]*Queue{{Name: "a", Parent: "b", Tenant: true}, {Name: "b", Parent: "a", Tenant: true}})
	if got := len(loop.Above("a")); got > 3 {
		t.Errorf("a cycle of two was followed %d times", got)
	}
	if path, err := NewTree(nil).Path("x", "y"); err != nil || path != nil {
		t.Errorf("without any record: %v %v", path, err)
	}
}
