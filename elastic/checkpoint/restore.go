package checkpoint

import (
	"cmp"
	"math"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Record is one committed step as the head's state keeps it.
type Record struct {
	StepName
	Digest     string // of manifest.json
	RolledBack bool   // freed by a rolled-back entry; its directory stays as a fork
	Tombstoned bool   // deletion was decided; its files may be gone
	Pinned     bool   // a user asked to keep it
	Metrics    []wire.Metric
}

// NoCeiling lets Newest choose among all steps.
const NoCeiling = int64(math.MaxInt64)

// Newest chooses the step that an attempt restores: the highest (generation, step)
// that is committed, neither rolled back nor tombstoned, and not above the ceiling.
// It is pure, so the choice can stand in the attempt's record and every rank loads
// that one (P4). ok is false when there is none and the attempt begins from nothing.
func Newest(records []Record, ceiling int64) (newest Record, ok bool) {
	for _, r := range records {
		if r.RolledBack || r.Tombstoned || r.Step > ceiling {
			continue
		}
		if !ok || compareRecords(newest, r) < 0 {
			newest, ok = r, true
		}
	}
	return newest, ok
}

// compareRecords orders by (generation, step). Two lives can hold the same pair after
// a restored backup; the life then decides, only so that everyone decides alike.
func compareRecords(a, b Record) int {
	return cmp.Or(
		cmp.Compare(a.Generation, b.Generation),
		cmp.Compare(a.Step, b.Step),
		cmp.Compare(a.Life, b.Life),
	)
}
