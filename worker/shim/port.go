package shim

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// errPortUsed is wrapped when another process has the master port: nobody's failure,
// since the head chose it. The next attempt gets another port.
var errPortUsed = errors.New("the master port is taken")

func portUsed(a *wire.AttemptSpec) error {
	return fmt.Errorf("%w: another process listens on port %d of %s", errPortUsed, a.MasterPort, a.MasterAddr)
}

// portTaken reports whether rank 0, if it is one of this node's, would find its port
// taken.
func portTaken(a *wire.AttemptSpec) bool {
	if a.MasterPort <= 0 || !slices.ContainsFunc(a.Ranks, func(r wire.RankSpec) bool { return r.Rank == 0 }) {
		return false
	}
	taken, err := process.PortTaken(a.MasterPort)
	if err != nil {
		log.Printf("master port: %v", err) // the rank finds out
	}
	return taken
}

// blame decides, when nothing of an attempt is left, whether it failed because of its
// port. Rank 0 says that it could not listen, and it may have taken the port itself or
// by a peer: only if it is taken still, another's doing is proven. The ends that wait
// to be told are consequences then, else they stand as they are.
func (s *shim) blame(a *attempt) error {
	if !a.suspect || !portTaken(&a.spec) {
		return nil
	}
	for i := range a.held {
		a.held[i].ByShim = a.held[i].ByShim || a.held[i].Code != 0
	}
	return portUsed(&a.spec)
}

// addressInUse reports whether a program says that it could not listen.
func (f *failure) addressInUse() bool {
	for _, text := range []string{f.message, f.traceback} {
		if strings.Contains(text, "EADDRINUSE") || strings.Contains(strings.ToLower(text), "address already in use") {
			return true
		}
	}
	return false
}
