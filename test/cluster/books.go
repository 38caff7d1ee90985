package cluster

import (
	"time"

	"github.com/troupe-runtime/troupe/head/state"
)

// books waits until nothing is charged, nothing waits and nothing runs (P8).
func (c *Cluster) books() {
	c.T.Helper()
	c.Wait("the books are balanced", time.Minute, func(v *state.View) bool {
		return len(v.Holds()) == 0 && len(v.Groups()) == 0 && len(c.Hosts.Live("")) == 0
	})
}
