package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Limits of a tree of tenants and queues.
const (
	MaxQueueDepth  = 16
	MaxWeight      = 1_000_000
	maxPausedBytes = 1024
	maxPools       = 64
)

// ValidateQueues says what is wrong with a whole tree of tenants and queues, nil if nothing
// is. Pointers are relative to the list. capacities are the names of what a quota may count
// beside gpu, gpu:MODEL, cpu and memory.
func ValidateQueues(list []*api.Queue, capacities ...string) []api.FieldError {
	v := &treeChecker{byName: map[string]*api.Queue{}, kids: map[string][]*api.Queue{}, capacities: capacities}
	for i, q := range list {
		if q == nil {
			v.add(fmt.Sprintf("/%d", i), "nothing, where a tenant or queue belongs")
			return v.errs
		}
		if have := v.byName[q.Name]; have != nil && q.Name != "" {
			v.add(fmt.Sprintf("/%d/name", i), "%.40q stands here twice; tenants and queues share one set of names", q.Name)
			continue
		}
		v.byName[q.Name] = q
		v.kids[q.Parent] = append(v.kids[q.Parent], q)
	}
	for i, q := range list {
		at := fmt.Sprintf("/%d", i)
		v.names(at, q)
		v.parent(at, q)
		v.quantities(at, q)
		v.rest(at, q)
	}
	if len(v.errs) == 0 {
		for i, q := range list {
			v.promises(fmt.Sprintf("/%d", i), q)
		}
	}
	return v.errs
}

type treeChecker struct {
	checker
	byName     map[string]*api.Queue
	kids       map[string][]*api.Queue
	capacities []string
}

func (v *treeChecker) names(at string, q *api.Queue) {
	if q.Name == "" {
		v.add(at+"/name", "a tenant or queue needs a name")
	}
	v.name(at+"/name", q.Name)
	if len(q.Pools) > maxPools {
		v.add(at+"/pools", "%d pools are more than %d", len(q.Pools), maxPools)
		return
	}
	for k, p := range q.Pools {
		pointer := fmt.Sprintf("%s/pools/%d", at, k)
		switch {
		case p == "":
			v.add(pointer, "a pool has a name; leave pools out for all of them")
		case slices.Contains(q.Pools[:k], p):
			v.add(pointer, "%.40q stands here twice", p)
		default:
			v.name(pointer, p)
		}
	}
}

// parent checks that the way up ends at the root.
func (v *treeChecker) parent(at string, q *api.Queue) {
	if q.Parent == "" {
		return
	}
	p := v.byName[q.Parent]
	switch {
	case q.Parent == q.Name:
		v.add(at+"/parent", "%.40q is below itself; leave the parent out to stand at the top", q.Name)
	case p == nil:
		v.add(at+"/parent", "there is no %.40q; name a tenant of this list, or leave the parent out to stand at the top", q.Parent)
	case !p.Tenant:
		v.add(at+"/parent", "%.40q is a queue, and nothing stands below a queue; make it a tenant (tenant: true) or name another parent", q.Parent)
	default:
		way := []string{q.Name}
		for x := p; x != nil; x = v.byName[x.Parent] {
			if way = append(way, x.Name); x.Name == q.Name {
				v.add(at+"/parent", "%s is a circle; give one of them another parent", strings.Join(way, " below "))
				return
			}
			if len(way) > MaxQueueDepth {
				v.add(at+"/parent", "stands more than %d deep, or below a circle; give it another parent", MaxQueueDepth)
				return
			}
			if x.Parent == "" {
				return
			}
		}
	}
}

// quantities checks what is guaranteed, lent and limited, each by itself and together.
func (v *treeChecker) quantities(at string, q *api.Queue) {
	for _, part := range []struct {
		name string
		list api.Amounts
	}{{"guaranteed", q.Guaranteed}, {"limit", q.Limit}, {"lend", q.Lend}} {
		for k, a := range part.list {
			pointer := at + "/" + part.name + "/" + escaped(a.Of)
			switch {
			case k > 0 && part.list[k-1].Of >= a.Of:
				v.add(pointer, "stands here twice, or out of the order of names")
			case !v.known(a.Of):
				v.add(pointer, "%.40q is nothing that a quota counts: gpu, gpu:MODEL, cpu, memory%s", a.Of, v.more())
			case a.N < 0:
				v.add(pointer, "%d: a quota is at least 0; leave it out for no limit", a.N)
			}
		}
	}
	for _, a := range q.Lend {
		pointer := at + "/lend/" + escaped(a.Of)
		g, ok := q.Guaranteed.Get(a.Of)
		switch {
		case !onNodes(a.Of):
			v.add(pointer, "%.40q is no part of nodes, of which alone something is lent", a.Of)
		case !ok:
			v.add(pointer, "lends %s and is guaranteed none; put it under guaranteed as well, or leave it out", quantity(a.Of, a.N))
		case a.N > g:
			v.add(pointer, "lends %s and is guaranteed %s; lend at most that", quantity(a.Of, a.N), quantity(a.Of, g))
		}
	}
	for _, a := range q.Guaranteed {
		if l, ok := q.Limit.Get(a.Of); ok && l < a.N {
			v.add(at+"/limit/"+escaped(a.Of), "is %s, below the %s that are guaranteed; raise it, or guarantee less", quantity(a.Of, l), quantity(a.Of, a.N))
		}
		if all, ok := q.Guaranteed.Get(ofGPU); ok && strings.HasPrefix(a.Of, ofModel) && a.N > all {
			v.add(at+"/guaranteed/"+escaped(a.Of), "is %s, but %s are guaranteed of all models together", quantity(a.Of, a.N), quantity(ofGPU, all))
		}
	}
}

func (v *treeChecker) known(of string) bool {
	return onNodes(of) || of != "" && slices.Contains(v.capacities, of)
}

func (v *treeChecker) more() string {
	if len(v.capacities) == 0 {
		return ""
	}
	return ", or a capacity: " + shortList(sortedCopy(v.capacities))
}

// onNodes: it is a part of nodes.
func onNodes(of string) bool {
	model, typed := strings.CutPrefix(of, ofModel)
	return of == ofGPU || of == ofCPU || of == ofMemory ||
		typed && model != "" && len(model) <= MaxNameLength && printable(model)
}

func (v *treeChecker) rest(at string, q *api.Queue) {
	switch q.Order {
	case "", OrderFair, OrderFIFO, OrderShort, OrderDeadline:
	default:
		v.add(at+"/order", "unknown order %.40q: use fair, fifo, short or deadline", q.Order)
	}
	if w := q.Weight; w != nil && (*w < 0 || *w > MaxWeight) {
		v.add(at+"/weight", "%d is not within 0 to %d; 0 is last", *w, MaxWeight)
	}
	if p := q.MaxPriority; p != nil && (*p < -MaxPriority || *p > MaxPriority) {
		v.add(at+"/maxPriority", "%d is not within ±%d", *p, MaxPriority)
	}
	if q.MaxWait < 0 {
		v.add(at+"/maxWait", "%s: a wait cannot be negative; leave it out for none", q.MaxWait)
	}
	if len(q.Paused) > maxPausedBytes || !printable(q.Paused) {
		v.add(at+"/paused", "the reason has at most %d printable bytes", maxPausedBytes)
	}
}

// promises checks that nobody guarantees more than it was itself.
func (v *treeChecker) promises(at string, q *api.Queue) {
	sum := map[string]int64{}
	for _, k := range v.kids[q.Name] {
		for _, of := range v.things(k, MaxQueueDepth) {
			sum[of] = satAdd(sum[of], v.promised(k, of, MaxQueueDepth))
		}
	}
	for _, of := range sortedKeys(sum) {
		have, bound := q.Limit.Get(of)
		word := "limited to"
		if g, ok := q.Guaranteed.Get(of); ok {
			have, bound, word = g, true, "guaranteed"
		}
		if bound && sum[of] > have {
			v.add(at+"/guaranteed/"+escaped(of), "those below %s are guaranteed %s together, and it is %s %s itself; guarantee them less, or it more",
				q.Name, quantity(of, sum[of]), word, quantity(of, have))
		}
	}
}

// promised is what is guaranteed to a node, or else to those below it.
func (v *treeChecker) promised(q *api.Queue, of string, deep int) int64 {
	if g, ok := q.Guaranteed.Get(of); ok || deep == 0 {
		return g
	}
	var sum int64
	for _, k := range v.kids[q.Name] {
		sum = satAdd(sum, v.promised(k, of, deep-1))
	}
	return sum
}

// things are what is guaranteed to a node or below it.
func (v *treeChecker) things(q *api.Queue, deep int) []string {
	var out []string
	for _, a := range q.Guaranteed {
		out = append(out, a.Of)
	}
	for _, k := range v.kids[q.Name] {
		if deep > 0 {
			out = append(out, v.things(k, deep-1)...)
		}
	}
	return sortedCopy(out)
}

// escaped is a name within a JSON pointer.
func escaped(name string) string {
	if len(name) > MaxNameLength {
		name = name[:MaxNameLength]
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
