package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Account is what is charged to a tenant, a queue or a capacity. It is written in the
// entry that changes the holds behind it, so that it always is their sum (P8).
type Account struct {
	// ID is queue/NAME, capacity/NAME or capacity/NAME/DOMAIN; own/NAME and held follow what
	// is kept for whom, see bill.lends.
	ID string `json:"id"`
	// Charged is what placed groups hold. A released hold is no longer charged to tenant
	// and queue; to a node and a capacity it is until nothing can use it any more (P2).
	Charged api.Amounts `json:"charged,omitempty"`
	// Assured is the part of it that work holds which may not be preempted.
	Assured api.Amounts `json:"assured,omitempty"`
	// Used is the decayed use of a tenant or queue as of At: thousandths of GPU-seconds.
	Used int64 `json:"used,omitempty"`
	At   int64 `json:"at,omitempty"` // ns
}

const (
	// AccountQueue begins the ids of the accounts of tenants and queues.
	AccountQueue    = "queue/"
	accountCapacity = "capacity/"
)

// QueueAccount is what is charged to a tenant or queue; nil: nothing ever was.
func (v *View) QueueAccount(name string) *Account {
	return first[Account](v.records, tAccount, "id", AccountQueue+name)
}

// CapacityAccount is what is charged to a capacity, in a domain of its level or, with an
// empty one, in the whole cluster.
func (v *View) CapacityAccount(name, domain string) *Account {
	return first[Account](v.records, tAccount, "id", capacityID(name, domain))
}

// Accounts in order of id.
func (v *View) Accounts() []*Account { return all[Account](v.records, tAccount, "id") }

func capacityID(name, domain string) string {
	if domain == "" {
		return accountCapacity + name
	}
	return accountCapacity + name + "/" + domain
}

// Amounts is what the hold is charged for: every device counts once in "gpu" and once for
// its model.
func (h *Hold) Amounts() api.Amounts {
	var out api.Amounts
	add := func(of string, n int64) {
		if n != 0 {
			had, _ := out.Get(of)
			out = out.With(of, had+n)
		}
	}
	each := int64(1000)
	if h.Need.Share > 0 {
		each = h.Need.Share
	}
	for _, u := range h.Uses {
		add(u.Of, u.N)
	}
	add("cpu", int64(h.Need.CPU))
	add("memory", int64(h.Need.Memory))
	for i := range h.Devices {
		add("gpu", each)
		if model := h.model(i); model != "" {
			add("gpu:"+model, each)
		}
	}
	return out
}

// model of device i; one word stands for equal devices.
func (h *Hold) model(i int) string {
	switch {
	case len(h.Models) == 1:
		return h.Models[0]
	case i < len(h.Models):
		return h.Models[i]
	}
	return ""
}

// modelsOf names the models of a node's devices, once if they are equal.
func (n *Node) modelsOf(devices []string) []string {
	out := make([]string, len(devices))
	for i, uuid := range devices {
		g, _ := n.gpu(uuid)
		out[i] = g.Model
	}
	if c := slices.Compact(slices.Clone(out)); len(c) <= 1 {
		out = c
	}
	if len(out) == 1 && out[0] == "" {
		return nil
	}
	return out
}

// ChargedTo names the tenants and queues of a tree that a hold is charged to, from the
// narrowest to the widest. A name without a record has an account all the same, so that its
// use is known.
func ChargedTo(tree *api.Tree, tenant, queue string) []string {
	if path, err := tree.Path(tenant, queue); err == nil && len(path) > 0 {
		out := make([]string, len(path))
		for i, q := range path {
			out[i] = q.Name
		}
		return out
	}
	if tenant == "" {
		tenant = api.DefaultQueue
	}
	return []string{tenant}
}

// bill gathers what one command charges, so that every account is written once.
type bill struct {
	t     *tx
	order []string
	by    map[string]map[due]int64
	paths map[[2]string][]string
	tree  *api.Tree
	// kept are the things that are followed for what is not lent, once looked.
	kept   []string
	looked bool
}

// due is one line of an account: of what, and whether it is work that may not be preempted.
type due struct {
	of      string
	assured bool
}

func (t *tx) newBill() *bill {
	return &bill{t: t, by: map[string]map[due]int64{}, paths: map[[2]string][]string{}}
}

func (b *bill) add(account string, d due, n int64) {
	m := b.by[account]
	if m == nil {
		m = map[due]int64{}
		b.by[account] = m
		b.order = append(b.order, account)
	}
	m[d] += n
}

// quota charges a hold to its tenant and queue, or with sign -1 gives it back.
func (b *bill) quota(h *Hold, sign int64) {
	key := [2]string{h.Tenant, h.Queue}
	path, ok := b.paths[key]
	if !ok {
		if b.tree == nil {
			b.tree = b.t.Tree()
		}
		path = ChargedTo(b.tree, h.Tenant, h.Queue)
		b.paths[key] = path
	}
	amounts := h.Amounts()
	for _, name := range path {
		for _, a := range amounts {
			b.add(AccountQueue+name, due{of: a.Of}, sign*a.N)
			if !h.Preemptible {
				b.add(AccountQueue+name, due{a.Of, true}, sign*a.N)
			}
		}
	}
}

// uses charges a hold to the capacities that it takes of.
func (b *bill) uses(h *Hold, sign int64) {
	for i, u := range h.Uses {
		domain := ""
		if i < len(h.Domains) {
			domain = h.Domains[i]
		}
		b.add(capacityID(u.Of, domain), due{of: u.Of}, sign*u.N)
	}
}

// turn is the change of a hold from what it was to what it is; nil: there is none.
func (b *bill) turn(was, is *Hold) {
	if was != nil {
		b.uses(was, -1)
		b.lends(was, -1)
		if !was.Releasing {
			b.quota(was, -1)
		}
	}
	if is != nil {
		b.uses(is, 1)
		b.lends(is, 1)
		if !is.Releasing {
			b.quota(is, 1)
		}
	}
}

// over says which limit or guarantee the bill would break; "": none. What only shrinks
// breaks none, also where a limit was lowered below what is charged. What may not be
// preempted stays within the guarantees of its tenant and queue, other work within limits
// alone.
func (b *bill) over() string {
	tree := b.t.Tree()
	for _, id := range b.order {
		a := b.t.account(id)
		for _, d := range sortedDues(b.by[id]) {
			n, of := b.by[id][d], d.of
			if n <= 0 {
				continue
			}
			have := a.of(d)
			if name, ok := strings.CutPrefix(id, AccountQueue); ok {
				q := tree.Get(name)
				if q == nil {
					continue
				}
				most, word := q.Limit, "its limit"
				if d.assured {
					most, word = q.Guaranteed, "guaranteed"
				}
				if limit, ok := most.Get(of); ok && n > limit-have {
					return fmt.Sprintf("%s would have %d of %s, %s is %d", name, have+n, of, word, limit)
				}
				continue
			}
			rest, ok := strings.CutPrefix(id, accountCapacity)
			if !ok {
				continue // of what is kept, see overLent
			}
			name, domain, _ := strings.Cut(rest, "/")
			c := b.t.Capacity(name)
			if c == nil {
				return fmt.Sprintf("there is no capacity %s", name)
			}
			if c.Spec.Level != "" && domain == "" {
				return fmt.Sprintf("capacity %s is counted for each %s, and a node of the placement is in none", name, c.Spec.Level)
			}
			if free := c.Spec.Total - c.Spec.Overhead - have; n > free {
				where := ""
				if domain != "" {
					where = " of " + domain
				}
				return fmt.Sprintf("capacity %s%s has %d of %d left", name, where, free, n)
			}
		}
	}
	return ""
}

// write settles the bill. Use is advanced to now with what was charged until now.
func (b *bill) write() {
	for _, id := range b.order {
		a := b.t.account(id)
		if strings.HasPrefix(id, AccountQueue) {
			a.Used, a.At = a.UsedAt(b.t.now, b.t.Settings().halfLife()), max(a.At, b.t.now)
		}
		for _, d := range sortedDues(b.by[id]) {
			a.set(d, a.of(d)+b.by[id][d])
		}
		if len(a.Charged) == 0 && a.Used == 0 {
			b.t.drop(tAccount, &a)
			continue
		}
		b.t.put(tAccount, &a)
	}
}

// account is the record of an id, or an empty one.
func (v *View) account(id string) Account {
	if a := first[Account](v.records, tAccount, "id", id); a != nil {
		return *a
	}
	return Account{ID: id}
}

// of is one line of the account.
func (a *Account) of(d due) int64 {
	list := a.Charged
	if d.assured {
		list = a.Assured
	}
	n, _ := list.Get(d.of)
	return n
}

func (a *Account) set(d due, n int64) {
	list := &a.Charged
	if d.assured {
		list = &a.Assured
	}
	*list = slices.DeleteFunc(list.With(d.of, n), func(x api.Amount) bool { return x.N == 0 })
	if len(*list) == 0 {
		*list = nil
	}
}

// dues are the lines of the account with what is charged.
func (a *Account) dues(f func(d due, n int64)) {
	for _, x := range a.Charged {
		f(due{of: x.Of}, x.N)
	}
	for _, x := range a.Assured {
		f(due{x.Of, true}, x.N)
	}
}

func sortedDues(m map[due]int64) []due {
	return slices.SortedFunc(maps.Keys(m), func(a, b due) int {
		if a.assured != b.assured {
			if a.assured {
				return 1
			}
			return -1
		}
		return strings.Compare(a.of, b.of)
	})
}

// dropHolds frees holds in the state and in the books.
func (t *tx) dropHolds(holds ...*Hold) {
	b := t.newBill()
	for _, h := range holds {
		b.turn(h, nil)
		t.drop(tHold, h)
	}
	b.write()
}

// recharge makes all accounts anew from the holds, after a change of what they are charged
// to. Use that was is kept.
func (t *tx) recharge() {
	b := t.newBill()
	for _, a := range t.Accounts() {
		a.dues(func(d due, n int64) { b.add(a.ID, d, -n) })
	}
	for _, h := range t.Holds() {
		b.turn(nil, h)
	}
	b.write()
}

// checkAccounts is the part of P8 about tenants, queues and capacities: what is charged is
// the sum of what is held.
func checkAccounts(v *View, bad func(string, ...any)) {
	t := &tx{View: v}
	b := t.newBill()
	for _, h := range v.Holds() {
		b.turn(nil, h)
	}
	for _, a := range v.Accounts() {
		a.dues(func(d due, n int64) {
			if n < 0 {
				bad("P8: %s is charged %d of %s", a.ID, n, d.of)
			}
			b.add(a.ID, d, -n)
		})
	}
	for _, id := range b.order {
		for _, d := range sortedDues(b.by[id]) {
			if n := b.by[id][d]; n != 0 {
				bad("P8: %s is charged %d of %s less than is held", id, n, d.of)
			}
		}
	}
}

// UsedAt is the decayed use at a time, with what is charged now counted up to then. The
// use of a constant r over an endless time is r × half-life ÷ ln 2; towards it, and away
// from what was used before, goes half of the way with each half-life.
func (a *Account) UsedAt(now, halfLife int64) int64 {
	if now <= a.At || halfLife <= 0 {
		return a.Used
	}
	rate, _ := a.Charged.Get("gpu")
	// 1 ÷ ln 2 in millionths; at most 10⁹ thousandths of GPUs over 10⁸ seconds.
	const perLn2 = 1_442_695
	steady := mulDiv(rate, mulDiv(halfLife, perLn2, 1_000_000), 1_000_000_000)
	left := decay(a.Used-steady, now-a.At, halfLife)
	return max(0, steady+left)
}

// QueueOf is the tenant or queue of an account; ok is false for those of capacities.
func QueueOf(a *Account) (name string, ok bool) { return strings.CutPrefix(a.ID, AccountQueue) }

// CapacityUse is what is charged to a capacity, by domain; "" for one of the whole cluster.
func (v *View) CapacityUse(name string) map[string]int64 {
	out := map[string]int64{}
	for _, a := range v.Accounts() {
		id, ok := strings.CutPrefix(a.ID, accountCapacity)
		if of, domain, _ := strings.Cut(id, "/"); ok && of == name {
			out[domain], _ = a.Charged.Get(name)
		}
	}
	return out
}
