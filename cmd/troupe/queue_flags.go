package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// queueFlags are what a tenant or queue is given.
type queueFlags struct {
	parent, order          string
	tenant                 bool
	guarantee, limit, lend []string
	weight, maxPriority    int64
	maxWait                longFlag
	pools, access          []string
	version                uint64
	noLimit, noGuarantee   []string
}

func (o *queueFlags) add(c *cobra.Command, create bool) {
	f := c.Flags()
	if create {
		f.BoolVar(&o.tenant, "tenant", false, "a tenant, to which people and queues belong, and not a queue")
	} else {
		f.Uint64Var(&o.version, "if-version", 0, "`N`: only if it stands at this version")
		f.StringSliceVar(&o.noLimit, "no-limit", nil, "`names`: of what is limited no more")
		f.StringSliceVar(&o.noGuarantee, "no-guarantee", nil, "`names`: of what is guaranteed no more")
		f.Lookup("if-version").DefValue, f.Lookup("no-limit").DefValue, f.Lookup("no-guarantee").DefValue = "", "", ""
	}
	f.StringVar(&o.parent, "parent", "", "`tenant`: that it is below of")
	f.StringSliceVar(&o.guarantee, "guarantee", nil, "`amounts`: its own, as gpu=8,cpu=64,memory=1TiB or gpu:H200=4")
	f.StringSliceVar(&o.limit, "limit", nil, "`amounts`: at most, with what it borrows")
	f.StringSliceVar(&o.lend, "lend", nil, "`amounts`: of what is guaranteed, that others may borrow (default all)")
	f.Int64Var(&o.weight, "weight", 1, "`N`: its part among its siblings; 0: after all others")
	f.StringVar(&o.order, "order", "", "`order`: of its requests: fair, fifo, short or deadline")
	f.Int64Var(&o.maxPriority, "max-priority", 1000, "`N`: that its requests may ask for")
	f.Var(&o.maxWait, "max-wait", "`time`: after which a request waits no longer behind others")
	f.StringSliceVar(&o.pools, "pools", nil, "`names`: of the pools that it may use (default all)")
	f.StringSliceVar(&o.access, "access", nil, "`labels`: of data sets and models that a tenant may use")
	for _, name := range []string{"guarantee", "limit", "lend", "pools", "access", "max-wait"} {
		f.Lookup(name).DefValue = ""
	}
}

// into changes what was given on the command line.
func (o *queueFlags) into(c *cobra.Command, q *api.Queue) error {
	set := c.Flags().Changed
	for _, x := range []struct {
		flag  string
		words []string
		to    *api.Amounts
	}{{"guarantee", o.guarantee, &q.Guaranteed}, {"limit", o.limit, &q.Limit}, {"lend", o.lend, &q.Lend}} {
		list, err := parseAmounts(x.flag, x.words)
		if err != nil {
			return err
		}
		for _, n := range list {
			*x.to = x.to.With(n.Of, n.N)
		}
	}
	drop := func(list api.Amounts, names []string) api.Amounts {
		return slices.DeleteFunc(slices.Clone(list), func(x api.Amount) bool { return slices.Contains(names, x.Of) })
	}
	for _, x := range []struct {
		flag, what string
		list       api.Amounts
		names      []string
	}{{"no-limit", "limited", q.Limit, o.noLimit}, {"no-guarantee", "guaranteed", q.Guaranteed, o.noGuarantee}} {
		for _, of := range x.names {
			if _, ok := x.list.Get(of); !ok {
				return usage("--%s %s: of %s nothing is %s; troupe quota get %s says what is", x.flag, of, q.Name, x.what, q.Name)
			}
		}
	}
	q.Limit, q.Guaranteed = drop(q.Limit, o.noLimit), drop(q.Guaranteed, o.noGuarantee)
	q.Lend = drop(q.Lend, o.noGuarantee)
	if set("parent") {
		q.Parent = o.parent
	}
	if set("weight") {
		q.Weight = &o.weight
	}
	if set("order") {
		q.Order = o.order
	}
	if set("max-priority") {
		q.MaxPriority = &o.maxPriority
	}
	if set("max-wait") {
		q.MaxWait = unit.Duration(o.maxWait)
	}
	if set("pools") {
		q.Pools = o.pools
	}
	if set("access") {
		q.Access = o.access
	}
	return nil
}
