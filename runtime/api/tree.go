package api

import "fmt"

// DefaultQueue is the name of the tenant and of the queue of whoever names none. Neither
// needs a record; without one they have no limits.
const DefaultQueue = "default"

// Tree finds tenants and queues by their names.
type Tree struct{ byName map[string]*Queue }

// NewTree makes a tree of records whose names differ.
func NewTree(list []*Queue) *Tree {
	t := &Tree{byName: make(map[string]*Queue, len(list))}
	for _, q := range list {
		t.byName[q.Name] = q
	}
	return t
}

// Get is the tenant or queue of a name; nil: there is none.
func (t *Tree) Get(name string) *Queue { return t.byName[name] }

// Above lists a node and what it is below of, from the narrowest to the widest.
func (t *Tree) Above(name string) []*Queue {
	var out []*Queue
	for q := t.byName[name]; q != nil && len(out) <= len(t.byName); q = t.byName[q.Parent] {
		out = append(out, q)
	}
	return out
}

// Path lists what a request of a tenant and queue is charged to, from the narrowest to the
// widest. A queue below a tenant is that tenant's alone; one below none takes the requests
// of all, which are then charged to their tenants besides. The error says what is unknown
// or does not go together; while there is no record at all every name is as good as another.
func (t *Tree) Path(tenant, queue string) ([]*Queue, error) {
	if len(t.byName) == 0 {
		return nil, nil
	}
	path, err := t.tenant(tenant)
	if err != nil || queue == "" {
		return path, err
	}
	q := t.byName[queue]
	switch {
	case q == nil && queue == DefaultQueue:
		return path, nil
	case q == nil:
		return nil, fmt.Errorf("no queue %q", queue)
	case q.Tenant && queue == tenant:
		return path, nil
	case q.Tenant:
		return nil, fmt.Errorf("%q is a tenant and no queue", queue)
	}
	above := t.Above(queue)
	owner := ""
	for _, x := range above {
		if x.Tenant {
			owner = x.Name
			break
		}
	}
	switch {
	case owner == "":
		return append(above, path...), nil
	case tenant == "" || tenant == DefaultQueue && len(path) == 0:
		return above, nil
	}
	for _, x := range above {
		if x.Name == tenant {
			return above, nil
		}
	}
	return nil, fmt.Errorf("queue %q belongs to tenant %q, not to %q", queue, owner, tenant)
}

func (t *Tree) tenant(name string) ([]*Queue, error) {
	q := t.byName[name]
	switch {
	case name == "", q == nil && name == DefaultQueue:
		return nil, nil
	case q == nil:
		return nil, fmt.Errorf("no tenant %q", name)
	case !q.Tenant:
		return nil, fmt.Errorf("%q is a queue and no tenant", name)
	}
	return t.Above(name), nil
}
