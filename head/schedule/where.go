package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// MaxRules bounds the conditions on labels of one request, and the values of one of them.
const MaxRules = 32

// meets reports whether labels fulfil a rule. A rule that nobody knows is met by nothing.
func meets(labels map[string]string, r *api.LabelRule) bool {
	have, ok := labels[r.Key]
	in := ok && slices.Contains(r.Values, have)
	switch r.Op {
	case "=", "in":
		return in
	case "!=", "notin":
		return !in
	}
	return false
}

// whereKey is equal for rules that the same nodes meet, as far as that is plain to see.
func whereKey(rules []api.LabelRule) string {
	if len(rules) == 0 {
		return ""
	}
	var parts []string
	for i := range rules {
		parts = append(parts, fmt.Sprintf(" [%q %s %q]", rules[i].Key, rules[i].Op, sortedCopy(rules[i].Values)))
	}
	return strings.Join(sortedCopy(parts), "")
}

// ruleText is a rule as people write it: rack=r1, rack!=r1, zone in (a, b).
func ruleText(r *api.LabelRule) string {
	if (r.Op == "=" || r.Op == "!=") && len(r.Values) == 1 {
		return r.Key + r.Op + r.Values[0]
	}
	return fmt.Sprintf("%s %s (%s)", r.Key, r.Op, strings.Join(r.Values, ", "))
}

// where checks the rules of a request. Two of them that no label can meet together are a
// contradiction, and not a request that waits for ever.
func (v *checker) where(rules []api.LabelRule) {
	if len(rules) > MaxRules {
		v.add("/where", "%d rules are more than %d", len(rules), MaxRules)
		return
	}
	for i := range rules {
		r, at := &rules[i], fmt.Sprintf("/where/%d", i)
		if r.Key == "" || len(r.Key) > MaxLabelBytes || !printable(r.Key) {
			v.add(at+"/key", "label %.40q: keys have 1 to %d printable bytes", r.Key, MaxLabelBytes)
		}
		switch r.Op {
		case "=", "!=":
			if len(r.Values) != 1 {
				v.add(at+"/values", "%s goes with one value, not %d; use in or notin", r.Op, len(r.Values))
			}
		case "in", "notin":
			if len(r.Values) == 0 || len(r.Values) > MaxRules {
				v.add(at+"/values", "%d values: 1 to %d", len(r.Values), MaxRules)
			}
		default:
			v.add(at+"/op", "unknown operator %.40q: use =, !=, in or notin", r.Op)
		}
		for j, value := range r.Values[:min(len(r.Values), MaxRules)] {
			if len(value) > MaxLabelBytes || !printable(value) {
				v.add(fmt.Sprintf("%s/values/%d", at, j), "%.40q: at most %d printable bytes", value, MaxLabelBytes)
			}
		}
		for j := range rules[:i] {
			if contradict(&rules[j], r) {
				v.add(at, "%s and %s (/where/%d) contradict each other: no node can meet both", ruleText(r), ruleText(&rules[j]), j)
			}
		}
	}
}

func contradict(a, b *api.LabelRule) bool {
	if a.Key != b.Key {
		return false
	}
	wants := func(r *api.LabelRule) bool { return (r.Op == "=" || r.Op == "in") && len(r.Values) > 0 }
	switch {
	case wants(a) && wants(b):
		return !slices.ContainsFunc(a.Values, func(x string) bool { return slices.Contains(b.Values, x) })
	case wants(a):
		return !slices.ContainsFunc(a.Values, func(x string) bool { return !slices.Contains(b.Values, x) })
	case wants(b):
		return contradict(b, a)
	}
	return false
}
