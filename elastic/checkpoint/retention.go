package checkpoint

import (
	"cmp"
	"slices"
)

// Policy says which committed steps stay. What any of its rules keeps stays.
type Policy struct {
	Last  int   // the newest so many; below 1 counts as 1
	Every int64 // and each step that is a multiple; 0: none
	Best  *Best // and the best by a metric; nil: none
}

// Best keeps the steps with the best values of a metric. A step without the metric is
// none of them; of equal values the newer is better.
type Best struct {
	Metric string
	Max    bool // the highest values, else the lowest
	Count  int
}

// Expired returns the committed steps that retention may delete, oldest first: all that
// no rule of the policy keeps. Never among them (I20): the newest, a pinned one, the one
// a live attempt restores from, and one already tombstoned. A rolled-back step keeps no
// place and is not deleted: its directory stays as a fork, which may be whole after all.
//
// Each returned step needs a tombstone entry in the log before its files go.
func Expired(records []Record, p Policy, restoring []StepName) []Record {
	var standing []Record
	for _, r := range records {
		if !r.RolledBack && !r.Tombstoned {
			standing = append(standing, r)
		}
	}
	if len(standing) == 0 {
		// Only forks are left; one of them may be all a user can still go back to.
		return nil
	}
	slices.SortFunc(standing, compareRecords)
	kept := map[StepName]bool{}
	for _, r := range standing[max(0, len(standing)-max(p.Last, 1)):] {
		kept[r.StepName] = true
	}
	for _, r := range p.Best.of(standing) {
		kept[r.StepName] = true
	}
	var out []Record
	for _, r := range standing {
		switch {
		case kept[r.StepName], r.Pinned, slices.Contains(restoring, r.StepName):
		case p.Every > 0 && r.Step%p.Every == 0:
		default:
			out = append(out, r)
		}
	}
	return out
}

// of picks the best of what stands, which comes from the oldest to the newest.
func (b *Best) of(standing []Record) []Record {
	if b == nil || b.Count < 1 {
		return nil
	}
	var with []Record
	value := map[StepName]float64{}
	for _, r := range slices.Backward(standing) {
		for _, m := range r.Metrics {
			if m.Name == b.Metric {
				value[r.StepName] = m.Value
				with = append(with, r)
			}
		}
	}
	slices.SortStableFunc(with, func(x, y Record) int {
		order := cmp.Compare(value[x.StepName], value[y.StepName])
		if b.Max {
			return -order
		}
		return order
	})
	return with[:min(b.Count, len(with))]
}
