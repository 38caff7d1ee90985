package shim

import (
	"math"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// sortedMetrics makes a list of what is finite, bounded as a rank's report is.
func sortedMetrics(all map[string]float64) []wire.Metric {
	out := make([]wire.Metric, 0, len(all))
	for name, v := range all {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out = append(out, wire.Metric{Name: name, Value: v})
		}
	}
	slices.SortFunc(out, func(a, b wire.Metric) int { return strings.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxMetrics)]
}
