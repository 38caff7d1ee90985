package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// defaultMaxPriority is what a request may ask for where no tenant or queue says.
const defaultMaxPriority = 1000

// asking is what the admission of a request looks at.
type asking struct {
	tenant, queue, pool string
	priority            int64
	data                []string
}

// admit refuses, before anybody looks at resources, what tenant and queue do not allow.
func admit(v *state.View, a asking) *api.Problem {
	tree := v.Tree()
	path, err := tree.Path(a.tenant, a.queue)
	if err != nil {
		pointer := "/queue"
		if strings.HasPrefix(err.Error(), "no tenant") || strings.Contains(err.Error(), "and no tenant") {
			pointer = "/tenant"
		}
		status, code, exit, title := 422, "TRP-Q422", api.ExitBadInput, "unknown tenant or queue"
		if strings.Contains(err.Error(), "belongs to tenant") {
			status, code, exit, title = 403, "TRP-Q403", api.ExitDenied, "not this tenant's"
		}
		p := problem(status, code, exit, title, "%s", err)
		p.Help, p.Errors = "troupe queue list", []api.FieldError{{Pointer: pointer, Detail: err.Error()}}
		return p
	}
	most := int64(defaultMaxPriority)
	by := ""
	for _, q := range path {
		if q.MaxPriority != nil && (by == "" || *q.MaxPriority < most) {
			most, by = *q.MaxPriority, q.Name
		}
	}
	if len(v.Queues()) > 0 && a.priority > most { // who names no queue overtakes nobody by it
		text := fmt.Sprintf("priority %d is above %d", a.priority, most)
		if by != "" {
			text += ", the most that " + by + " may ask for"
		}
		return denied("/priority", "ask for less, or have it raised: troupe queue set", text)
	}
	for _, q := range path {
		if len(q.Pools) > 0 && !slices.Contains(q.Pools, a.pool) {
			text := fmt.Sprintf("%s may use the pools %s, not %q", q.Name, strings.Join(q.Pools, ", "), a.pool)
			if a.pool == "" {
				text = fmt.Sprintf("%s may use the pools %s only: name one", q.Name, strings.Join(q.Pools, ", "))
			}
			return denied("/pool", "--pool "+q.Pools[0], text)
		}
	}
	return admitData(v, path, a)
}

// poolOf is the pool of a request that names none: the one that its queue may use, if there
// is only one.
func poolOf(v *state.View, a asking) string {
	path, err := v.Tree().Path(a.tenant, a.queue)
	if err != nil || a.pool != "" {
		return a.pool
	}
	for _, q := range path {
		switch len(q.Pools) {
		case 0:
		case 1:
			return q.Pools[0]
		default:
			return ""
		}
	}
	return ""
}

// admitData: a label that any tenant has access to is open to such tenants alone.
func admitData(v *state.View, path []*api.Queue, a asking) *api.Problem {
	for i, label := range a.data {
		kept := false
		for _, q := range v.Queues() {
			kept = kept || slices.Contains(q.Spec.Access, label)
		}
		if kept && !slices.ContainsFunc(path, func(q *api.Queue) bool { return slices.Contains(q.Access, label) }) {
			return denied(fmt.Sprintf("/data/%d", i), "have the access given: troupe queue set "+a.tenant+" --access "+label,
				fmt.Sprintf("tenant %s has no access to %q", a.tenant, label))
		}
	}
	return nil
}

func denied(pointer, help, text string) *api.Problem {
	p := problem(403, "TRP-Q403", api.ExitDenied, "not allowed", "%s", text)
	p.Help, p.Errors = help, []api.FieldError{{Pointer: pointer, Detail: text}}
	return p
}

func askingOf(s api.JobSpec) asking {
	return asking{s.Tenant, s.Queue, s.Pool, s.Priority, s.Data}
}

// who is the name of the credential behind a request; "" for the head's own doing.
func (h *Head) who(ctx context.Context) string {
	id := access.IdentityOf(ctx)
	if id.Key == "" {
		return ""
	}
	for _, t := range h.Store.View().Tokens() {
		if strings.HasPrefix(t.Hash, id.Key) {
			return t.Name
		}
	}
	return id.Role.String()
}
