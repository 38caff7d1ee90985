package api

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// AmountText is a quantity as people type it: devices and cores with their parts, bytes
// with a unit.
func AmountText(of string, n int64) string {
	switch {
	case of == "cpu":
		return unit.MilliCPU(n).String()
	case of == "memory":
		return unit.Bytes(n).Human()
	case of == "gpu" || strings.HasPrefix(of, "gpu:"):
		if n%1000 == 0 {
			return strconv.FormatInt(n/1000, 10)
		}
		return strings.TrimRight(fmt.Sprintf("%d.%03d", n/1000, n%1000), "0")
	}
	return strconv.FormatInt(n, 10)
}

// Text lists quantities as people type them, as "cpu=4,gpu=2"; "" when there are none.
func (a Amounts) Text() string {
	words := make([]string, len(a))
	for i, x := range a {
		words[i] = x.Of + "=" + AmountText(x.Of, x.N)
	}
	return strings.Join(words, ",")
}

// For says whom a reservation is for.
func (r Reservation) For() string {
	switch {
	case r.Maintenance != "":
		return "maintenance: " + r.Maintenance
	case r.Tenant != "":
		return "tenant " + r.Tenant
	case r.Queue != "":
		return "queue " + r.Queue
	}
	return "job " + r.Job
}

// What says which nodes a reservation keeps.
func (r Reservation) What() string {
	if len(r.Nodes) > 0 {
		return strings.Join(r.Nodes, ", ")
	}
	text := fmt.Sprintf("%d nodes", r.Count)
	if r.Count == 1 {
		text = "1 node"
	}
	if r.Pool != "" {
		text += " of pool " + r.Pool
	}
	if r.Level != "" {
		text += " in one " + r.Level
	}
	return text
}

// HasText names the nodes that a reservation has got, and says how many it lacks; "" when
// neither is known.
func (r ReservationStatus) HasText() string {
	text := strings.Join(r.Has, ", ")
	if r.Lacks > 0 {
		if text != "" {
			text += ", "
		}
		text += "lacks " + strconv.FormatInt(r.Lacks, 10)
	}
	return text
}

// Text is what an operator set of the scheduler.
func (p SchedulerPolicy) Text() string {
	var parts []string
	add := func(has bool, format string, args ...any) {
		if has {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(p.Order != "", "order %s", p.Order)
	add(p.NoBackfill, "no backfill")
	add(p.NoPreempt, "no preemption")
	if p.Protect != nil {
		add(true, "protects what has just started for %s", *p.Protect)
	}
	add(p.MaxLost > 0, "loses at most %d GPU-hours an hour to preemption", p.MaxLost)
	add(p.LinkFresh > 0, "links fresh for %s", p.LinkFresh)
	if p.GrowAfter != nil {
		add(true, "lets elastic jobs grow after %s", *p.GrowAfter)
	}
	if p.Replacement != nil {
		add(true, "keeps the place of a broken gang for %s", *p.Replacement)
	}
	if len(parts) == 0 {
		return "as shipped"
	}
	return strings.Join(parts, "; ")
}
