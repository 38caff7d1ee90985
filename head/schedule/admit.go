package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// refusal is one check of a request's tenant and queue that failed.
type refusal struct {
	by      check
	account *account
	thing   int
	most    int64 // what is guaranteed, or the limit
	used    int64 // of it
	need    int64
	at      *quotas // as they are when it fails: now, or once those have left that leave
}

// check numbers what is looked at, in this order, before any node is.
type check int8

const (
	checkNames check = iota // the tenant and the queue exist and go together
	checkPool               // the queue may use the pool
	checkPaused
	checkGuarantee
	checkLimit
	checkKept // others do not keep what preemptible work would use
)

// admits says whether tenant and queue of a request let it be placed. needs is what it
// takes, by needs; c is what it is charged to.
func (q *quotas) admits(c *charging, r *Request, needs []int64) bool {
	ok := true
	q.look(c, r, needs, func(refusal) bool { ok = false; return false })
	return ok
}

// look calls found for each check that fails, in their order, the narrowest tenant or
// queue first, until it returns false.
func (q *quotas) look(c *charging, r *Request, needs []int64, found func(refusal) bool) {
	if c.wrong != nil {
		found(refusal{by: checkNames})
		return
	}
	for _, a := range c.path {
		if len(a.q.Pools) > 0 && !slices.Contains(a.q.Pools, r.Spec.Pool) && !found(refusal{by: checkPool, account: a}) {
			return
		}
	}
	for _, a := range c.path {
		if a.q.Paused != "" && !found(refusal{by: checkPaused, account: a}) {
			return
		}
	}
	// Work that may not be ended stays within guarantees; other work within limits alone.
	if !r.Spec.Preemptible {
		for _, a := range c.path {
			for i, n := range needs {
				if most := a.guaranteed[i]; n > 0 && most != unlimited && n > most-q.assured[a.at+i] &&
					!found(refusal{checkGuarantee, a, i, most, q.assured[a.at+i], n, q}) {
					return
				}
			}
		}
	}
	for _, a := range c.path {
		for i, n := range needs {
			if most := a.limit[i]; n > 0 && most != unlimited && n > most-q.used[a.at+i] &&
				!found(refusal{checkLimit, a, i, most, q.used[a.at+i], n, q}) {
				return
			}
		}
	}
	if r.Spec.Preemptible && q.keeps && q.lookKept(c, needs, found) && q.later != nil {
		q.later.lookKept(c, needs, found)
	}
}

// lookKept is look at what others keep; false: found does not want to know more.
func (q *quotas) lookKept(c *charging, needs []int64, found func(refusal) bool) bool {
	for i, n := range needs {
		// Where nobody keeps anything, what is missing is room, which the nodes answer for.
		if out := q.outside(c, i, n); out > 0 && out > q.room[i] && q.kept(c, i) && !found(refusal{by: checkKept, thing: i, most: max(0, q.room[i]), need: n, at: q}) {
			return false
		}
	}
	return true
}

// barred are the models of which a request may not have as many devices as it asks for, in
// order.
func (q *quotas) barred(r *Request, needs []int64) []string {
	if !q.typed {
		return nil
	}
	var out []string
	c := q.of(r.Spec.Tenant, r.Spec.Queue)
	for i, of := range q.things {
		if model, typed := strings.CutPrefix(of, ofModel); typed && !q.admits(c, r, q.ofClass(needs, i)) {
			out = append(out, model)
		}
	}
	return out
}

// ofClass is what a request needs if all its devices are of one class.
func (q *quotas) ofClass(needs []int64, thing int) []int64 {
	out := slices.Clone(needs)
	if gpu, ok := slices.BinarySearch(q.things, ofGPU); ok {
		out[thing] = needs[gpu]
	}
	return out
}

// whyModels names the quotas that keep a request off models where it would fit.
func (q *quotas) whyModels(r *Request, needs []int64, models []string) []api.Reason {
	var out []api.Reason
	for _, m := range models {
		if i, ok := slices.BinarySearch(q.things, ofModel+m); ok {
			out = append(out, q.why(r, q.ofClass(needs, i), len(out) == 0)...)
		}
	}
	return out
}

func amountOf(r *api.Resources) amount {
	return amount{max(0, r.GPUs), max(0, r.Share), max(0, int64(r.CPU)), max(0, int64(r.Memory))}
}

// why names all checks that fail, the first one first (P7). fits says that the request
// would fit were it not for them.
func (q *quotas) why(r *Request, needs []int64, fits bool) []api.Reason {
	var out []api.Reason
	c := q.of(r.Spec.Tenant, r.Spec.Queue)
	q.look(c, r, needs, func(f refusal) bool {
		out = append(out, q.reason(r, c, f))
		return true
	})
	if len(out) > 0 && fits && out[0].Code == api.ReasonQuota {
		out[0].Text = "would fit, but " + out[0].Text
	}
	return out
}

func (q *quotas) reason(r *Request, c *charging, f refusal) api.Reason {
	switch f.by {
	case checkNames:
		return api.Reason{
			Code: api.ReasonMisconfigured, Text: fmt.Sprintf("%s: the request can never start like this", c.wrong),
			Frees: "another tenant or queue in the request, or that one being made: troupe queue list",
		}
	case checkPool:
		may := "pool " + shortList(f.account.q.Pools)
		have := fmt.Sprintf("asks for pool %q", r.Spec.Pool)
		if r.Spec.Pool == "" {
			have = "names no pool"
		}
		return api.Reason{
			Code: api.ReasonMisconfigured, Text: fmt.Sprintf("%s may use %s only; the request %s", f.account.called(), may, have),
			Need: may, Where: f.account.called(), Frees: "a request for " + may,
		}
	case checkPaused:
		return api.Reason{
			Code: api.ReasonHeld, Text: fmt.Sprintf("%s is paused: %s", f.account.called(), f.account.q.Paused),
			Where: f.account.called(), Blockers: []string{f.account.q.Name}, Frees: "troupe queue resume " + f.account.q.Name,
		}
	case checkKept:
		return f.at.keptReason(c, f)
	case checkGuarantee, checkLimit:
	}
	return q.quotaReason(f)
}

// NeverAllowed says which quota of its tenant and queue a group exceeds though nothing else
// used any of it; nil if it exceeds none. A group with roles may start with fewer bundles.
func NeverAllowed(s *Snapshot, spec *api.GroupSpec) (why *api.Reason) {
	if s.Queues == nil || len(spec.Bundles) == 0 || len(spec.Roles) > 0 {
		return nil
	}
	f := newFrame(s.Queues.List)
	n := len(f.all) * len(f.things)
	q := &quotas{frame: f, s: s, charges: charges{make([]int64, n), make([]int64, n), make([]int64, n)}}
	q.keeps = false // what is kept for others is no quota of its own
	r := &Request{Spec: *spec}
	var sum amount
	for i := range spec.Bundles {
		sum = sum.plus(amountOf(&spec.Bundles[i].Resources))
	}
	q.look(q.of(spec.Tenant, spec.Queue), r, q.needs(sum, spec.Uses, int64(len(spec.Bundles))), func(f refusal) bool {
		if (f.by == checkGuarantee || f.by == checkLimit) && f.need > f.most {
			now := newQuotas(s)
			f.account = now.byName[f.account.q.Name]
			if f.used = now.used[f.account.at+f.thing]; f.by == checkGuarantee {
				f.used = now.assured[f.account.at+f.thing]
			}
			said := now.quotaReason(f)
			said.Code = api.ReasonNeverFits
			why = &said
		}
		return why == nil
	})
	return why
}

// quotaReason names the quota, what is used of it and by whom, and what is missing.
func (q *quotas) quotaReason(f refusal) api.Reason {
	of, left := q.things[f.thing], max(0, f.most-f.used)
	word := "guarantees"
	if f.by == checkLimit {
		word = "is limited to"
	}
	out := api.Reason{
		Code: api.ReasonQuota, Where: f.account.called(),
		Need: quantity(of, f.need), Have: quantity(of, left), Missing: quantity(of, f.need-left),
	}
	if f.need > f.most {
		out.Text = fmt.Sprintf("quota: %s %s %s, %s in use; the request asks for %s", f.account.called(), word, quantity(of, f.most), bareQuantity(of, f.used), out.Need)
		out.Frees = fmt.Sprintf("a smaller request, or a quota of %s", out.Need)
		return out
	}
	who, alone := q.holdersOf(f)
	said := make([]string, len(who))
	for i, h := range who {
		said[i] = fmt.Sprintf("%s (%s)", h.called(), bareQuantity(of, q.heldOf(h, f.thing)))
		if h.User != "" {
			said[i] = fmt.Sprintf("%s (%s, %s)", h.called(), bareQuantity(of, q.heldOf(h, f.thing)), h.User)
		}
	}
	out.Text = fmt.Sprintf("quota: %s %s %s, %s in use", f.account.called(), word, quantity(of, f.most), bareQuantity(of, f.used))
	if len(said) > 0 {
		out.Text += " by " + shortList(said)
	}
	out.Text += fmt.Sprintf("; needs %s, %s missing", out.Need, bareQuantity(of, f.need-left))
	out.Block(names(who))
	switch {
	case alone != nil:
		out.Frees = "the end of " + alone.called() + " alone, or a larger quota"
	case len(who) > 0:
		out.Frees = "the end of enough of " + shortList(names(who)) + ", or a larger quota"
	default:
		out.Frees = "a larger quota"
	}
	return out
}

// keptReason: what is free is kept for those to whom it is guaranteed.
func (q *quotas) keptReason(c *charging, f refusal) api.Reason {
	of := q.things[f.thing]
	out := api.Reason{
		Code: api.ReasonQuota, Need: quantity(of, f.need), Have: quantity(of, f.most), Missing: quantity(of, f.need-min(f.need, f.most)),
	}
	var who, said []string
	for _, a := range q.keepers(c, f.thing) {
		who = append(who, a.q.Name)
		said = append(said, fmt.Sprintf("%s (%s)", a.called(), bareQuantity(of, a.keep[f.thing]-q.own[a.at+f.thing])))
	}
	out.Block(who)
	out.Text = fmt.Sprintf("quota: preemptible work may use %s now, beside what is kept free for %s; needs %s", out.Have, shortList(said), out.Need)
	out.Frees = "the end of other work, or a tenant that lends more"
	return out
}

// holdersOf names who uses what a quota counts, the largest first, and one whose end
// would be enough.
func (q *quotas) holdersOf(f refusal) (who []*Holder, alone *Holder) {
	type share struct {
		h    *Holder
		held int64
	}
	var all []share
	for _, h := range q.holders {
		if h.Spec == nil || h.Releasing || f.by == checkGuarantee && h.Spec.Preemptible {
			continue
		}
		if slices.Contains(q.of(h.Spec.Tenant, h.Spec.Queue).path, f.account) {
			if held := q.heldOf(h, f.thing); held > 0 {
				all = append(all, share{h, held})
			}
		}
	}
	slices.SortFunc(all, func(a, b share) int {
		return cmp.Or(cmp.Compare(b.held, a.held), naturalCompare(a.h.called(), b.h.called()), cmp.Compare(a.h.Group, b.h.Group))
	})
	who = make([]*Holder, len(all))
	for i, s := range all {
		if who[i] = s.h; s.held >= f.need-(f.most-f.used) {
			alone = s.h // the smallest that is enough
		}
	}
	return who, alone
}

func (q *quotas) heldOf(h *Holder, thing int) int64 { return q.heldBy(h)[thing] }

// quantity words an amount of a thing: "2 GPUs", "1.5 GPUs of H200", "8 CPU".
func quantity(of string, n int64) string {
	model, typed := strings.CutPrefix(of, ofModel)
	switch {
	case of == ofGPU || typed:
		s := bareQuantity(of, n) + " GPUs"
		if n == wholeShare {
			s = "1 GPU"
		}
		if typed {
			s += " of " + model
		}
		return s
	case of == ofCPU:
		return bareQuantity(of, n) + " CPU"
	case of == ofMemory:
		return bareQuantity(of, n) + " memory"
	}
	return fmt.Sprintf("%d of %s", n, of)
}

func bareQuantity(of string, n int64) string {
	switch {
	case of == ofGPU || strings.HasPrefix(of, ofModel) || of == ofCPU:
		if n%wholeShare == 0 {
			return fmt.Sprint(n / wholeShare)
		}
		return strings.TrimRight(fmt.Sprintf("%d.%03d", n/wholeShare, n%wholeShare), "0")
	case of == ofMemory:
		return unit.Bytes(n).String()
	}
	return fmt.Sprint(n)
}
