package supervise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Hosts is a group over several hosts, of which it takes MIN to MAX: which are there,
// and which make up the group now.
type Hosts struct {
	Min, Max int
	// LastCall is how long a group that could start waits for the hosts up to Max, and
	// Patience how long one that could not waits at all.
	LastCall, Patience time.Duration
	// Since is when the group began to wait; it counts while there are no Members.
	Since   time.Time
	Members []string // ids in the order of the group; empty: nothing is formed
	There   []Host   // hosts that can be used, in any order
}

// Host is one host that is there.
type Host struct {
	ID, Name string
	// Rank is the place in the group that the host asked for; -1: any.
	Rank  int64
	Since time.Time // when it came
}

// Shape is what a group over several hosts is to be.
type Shape struct {
	Members []string // in the order of the group; empty: none, it waits
	Changed bool     // it differs from what there is
	Left    bool     // a member is gone
	GiveUp  bool     // it has waited too long
	Delay   time.Duration
	Text    string // what is waited for, or what changed
}

// Form says which hosts make up the group. Nothing outside of MIN to MAX is ever formed;
// a host beyond MAX is left aside until a member leaves; members keep their order, so
// that ranks stay where they are, except that a host which asked for a place gets it.
func Form(g Hosts, now time.Time) Shape {
	at := map[string]int{}
	for i, id := range g.Members {
		at[id] = i
	}
	left := len(g.Members)
	for _, h := range g.There {
		if _, in := at[h.ID]; in {
			left--
		}
	}
	n := len(g.There)
	switch {
	case len(g.Members) > 0 && left == 0 && (len(g.Members) >= g.Max || n == len(g.Members)):
		return Shape{Members: g.Members}
	case len(g.Members) > 0 && n < g.Min:
		return Shape{Changed: true, Left: true, Text: fmt.Sprintf("%s of the %s that it needs are left", count(n, "host"), fmt.Sprint(g.Min))}
	case len(g.Members) > 0 || n >= g.Max:
		return g.shape(at, left > 0)
	case n >= g.Min:
		if d := g.LastCall - now.Sub(g.enough()); d > 0 {
			return Shape{Delay: d, Text: fmt.Sprintf("%d of at most %s are there; it starts in %s, or when all are", n, count(g.Max, "host"), round(d))}
		}
		return g.shape(at, false)
	}
	d := g.Patience - now.Sub(g.Since)
	text := fmt.Sprintf("%d of at least %s are there", n, count(g.Min, "host"))
	if d <= 0 {
		return Shape{GiveUp: true, Text: fmt.Sprintf("%s after %s", text, round(g.Patience))}
	}
	return Shape{Delay: d, Text: text}
}

// enough is when there were MIN hosts.
func (g *Hosts) enough() time.Time {
	since := make([]time.Time, 0, len(g.There))
	for _, h := range g.There {
		since = append(since, h.Since)
	}
	slices.SortFunc(since, time.Time.Compare)
	t := since[g.Min-1]
	if t.Before(g.Since) {
		return g.Since
	}
	return t
}

func (g *Hosts) shape(at map[string]int, left bool) Shape {
	hosts := slices.Clone(g.There)
	// Who is in stays in; then who asked for a place, then who came first.
	slices.SortFunc(hosts, func(a, b Host) int {
		_, ina := at[a.ID]
		_, inb := at[b.ID]
		return cmp.Or(-compareBool(ina, inb), -compareBool(a.Rank >= 0, b.Rank >= 0), a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID))
	})
	hosts = hosts[:min(len(hosts), g.Max)]
	const late = int64(1) << 40
	place := func(h Host) int64 {
		if h.Rank >= 0 {
			return h.Rank
		}
		if i, in := at[h.ID]; in {
			return int64(i)
		}
		return late
	}
	slices.SortFunc(hosts, func(a, b Host) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), -compareBool(a.Rank >= 0, b.Rank >= 0), natural(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	s := Shape{Changed: true, Left: left}
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		s.Members = append(s.Members, h.ID)
		names = append(names, h.Name)
	}
	s.Changed = !slices.Equal(s.Members, g.Members)
	s.Text = fmt.Sprintf("%s: %s", count(len(hosts), "host"), strings.Join(names, ", "))
	return s
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// natural orders gpu-2 before gpu-10.
func natural(a, b string) int {
	for a != "" && b != "" {
		da, db := leadingDigits(a), leadingDigits(b)
		if da != "" && db != "" {
			ta, tb := strings.TrimLeft(da, "0"), strings.TrimLeft(db, "0")
			if c := cmp.Or(cmp.Compare(len(ta), len(tb)), strings.Compare(ta, tb)); c != 0 {
				return c
			}
			a, b = a[len(da):], b[len(db):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(s string) string {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i]
}
