package shim

import (
	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// signalRanks sends a signal to the main processes of ranks, never to their children:
// a data loader's worker has no use for it. It is the loop's.
func (s *shim) signalRanks(o *wire.Signal) {
	a := s.att
	if o == nil || !a.active() || a.over || o.Generation != a.spec.Generation || !known(o.Number) {
		return
	}
	for _, n := range o.Ranks {
		if r := a.rank(n); r != nil && !r.ended && r.pid > 1 {
			s.rip.signal(r.pid, unix.Signal(o.Number))
		}
	}
}

// known keeps a head of another version from sending what is not for ranks.
func known(number int64) bool {
	for _, n := range api.Signals {
		if n == number {
			return true
		}
	}
	return false
}
