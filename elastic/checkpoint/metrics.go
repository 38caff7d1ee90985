package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// MaxMetrics bounds the metrics of a step.
const MaxMetrics = 64

// ValidMetric checks a metric's name: as a run's, and '/' is allowed within.
func ValidMetric(name string) error {
	if ValidRun(strings.ReplaceAll(name, "/", "_")) != nil || strings.HasPrefix(name, "/") {
		return badName("metric %q: 1 to %d letters, digits, '.', '_', '-' and '/', beginning with a letter or digit", trim(name), MaxRunName)
	}
	return nil
}

// metricsOf merges what the ranks gave: a metric is the run's, and where ranks differ the
// lowest one's word counts, whoever reported first. What cannot stand in a manifest is
// left out: a number is no reason to lose a step.
func metricsOf(byRank []wire.Prepared) []wire.Metric {
	var out []wire.Metric
	seen := map[string]bool{}
	for _, r := range byRank {
		for _, m := range r.Metrics {
			if seen[m.Name] || len(out) >= MaxMetrics || ValidMetric(m.Name) != nil || math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
				continue
			}
			seen[m.Name] = true
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b wire.Metric) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func checkMetrics(ms []wire.Metric) error {
	if len(ms) > MaxMetrics {
		return fmt.Errorf("%d metrics, at most %d are allowed", len(ms), MaxMetrics)
	}
	for i, m := range ms {
		if err := ValidMetric(m.Name); err != nil {
			return err
		}
		if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
			return fmt.Errorf("metric %q is not a finite number", m.Name)
		}
		if i > 0 && ms[i-1].Name >= m.Name {
			return errors.New("metrics are not sorted by name")
		}
	}
	return nil
}
