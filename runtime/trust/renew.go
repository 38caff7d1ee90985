package trust

import (
	"context"
	"log/slog"
	"time"

	"github.com/troupe-runtime/troupe/runtime/clock"
)

// How renewal is paced: what fails is tried again while a third of the life is left.
const (
	renewRetry = time.Minute
	// renewLook bounds one wait: the wall clock, which certificates live by, may jump.
	renewLook = time.Hour
)

// Renewer keeps a node's certificate from ending.
type Renewer struct {
	Identity *Identity
	// Ask sends a certificate request to a head and returns the chain that it grants.
	Ask    func(ctx context.Context, csr []byte) ([][]byte, error)
	Clock  clock.Clock
	Logger *slog.Logger
}

// Run renews at two thirds of each certificate's life, until ctx ends. What could not be
// renewed is tried again every minute, also when the certificate is over: the connection
// to the bus may still stand.
func (r Renewer) Run(ctx context.Context) {
	for {
		wait := min(renewLook, r.Identity.Due().Sub(r.Clock.Now()))
		if wait > 0 {
			if r.Clock.Sleep(ctx, wait) != nil {
				return
			}
			continue
		}
		err := r.renew(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			r.Logger.Info("the certificate of this node was renewed", "until", r.Identity.certs()[0].NotAfter)
			continue
		}
		r.Logger.Warn("the certificate of this node could not be renewed; trying again", "until", r.Identity.certs()[0].NotAfter, "err", err)
		if r.Clock.Sleep(ctx, renewRetry) != nil {
			return
		}
	}
}

func (r Renewer) renew(ctx context.Context) error {
	csr, err := r.Identity.Request()
	if err != nil {
		return err
	}
	chain, err := r.Ask(ctx, csr)
	if err != nil {
		return err
	}
	// By the root that it has: a renewal never changes the cluster.
	return r.Identity.Take(chain, r.Identity.Root(), r.Clock.Now())
}
