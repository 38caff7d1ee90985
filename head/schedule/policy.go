package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// maxPolicyTime bounds the times of a policy.
const maxPolicyTime = unit.Duration(30 * 24 * time.Hour)

// ValidatePolicy says everything that is wrong with what an operator sets.
func ValidatePolicy(p *api.SchedulerPolicy) (errs []api.FieldError) {
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if orders := []string{OrderFair, OrderFIFO, OrderShort, OrderDeadline}; p.Order != "" && !slices.Contains(orders, p.Order) {
		bad("/order", "%.40q: %s", p.Order, strings.Join(orders, ", "))
	}
	if p.MaxLost < 0 || p.MaxLost > 1_000_000_000 {
		bad("/maxLost", "%d GPU-hours: 0 to 1000000000", p.MaxLost)
	}
	for _, d := range []struct {
		pointer string
		v       *unit.Duration
	}{{"/protect", p.Protect}, {"/growAfter", p.GrowAfter}, {"/linkFresh", &p.LinkFresh}, {"/replacement", p.Replacement}} {
		if d.v != nil && (*d.v < 0 || *d.v > maxPolicyTime) {
			bad(d.pointer, "%s: 0 to %s", *d.v, maxPolicyTime)
		}
	}
	return errs
}
