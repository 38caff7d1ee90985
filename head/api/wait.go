package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

type ctx = context.Context

// request is what a handler knows of the request beside its input.
type request struct{ ctx }

// recheck is how often a stream asks whether its identity still holds.
const recheck = 4 * time.Second

// waiting reads the parameter `wait`; zero is no wait.
func waiting(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := unit.ParseDuration(text)
	if err != nil {
		return 0, parameter("wait", err.Error())
	}
	return min(d.D(), maxWait), nil // a longer wait is this one, repeated by the client
}

// until calls probe now and whenever change says that there may be news, until it is done,
// fails, or the time is over, which is no error: the caller answers with what a last probe
// sees. It takes a place among the streams while it waits.
func (s *server) until(ctx context.Context, wait time.Duration, change func() <-chan struct{}, probe func() (done bool, err error)) error {
	changed := change() // taken before the look, so that no change falls in between
	done, err := probe()
	if done || err != nil || wait <= 0 {
		return err
	}
	who := access.IdentityOf(ctx)
	release, err := s.open(who)
	if err != nil {
		return err
	}
	defer release()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	check := time.NewTicker(recheck)
	defer check.Stop()
	for {
		select {
		case <-changed:
			changed = change()
			if done, err := probe(); done || err != nil {
				return err
			}
		case <-deadline.C:
			_, err := probe() // what it waits for may read otherwise by now
			return err
		case <-access.Closing(ctx):
			return nil
		case <-check.C:
			if !who.Valid() {
				return revoked()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// open takes one of the places for streams.
func (s *server) open(who access.Identity) (func(), error) {
	release, ok := s.streams.Open(who.Key)
	if !ok {
		p, _ := access.RetryLater(http.StatusTooManyRequests, access.CodeStreams,
			fmt.Sprintf("too many streams and blocking reads are open (%d)", s.streams.Count()), time.Second)
		return nil, p
	}
	return release, nil
}

func revoked() error {
	return access.NewProblem(http.StatusUnauthorized, access.CodeNoIdentity, 77, "the identity of this request is no longer valid", "sign in again or use another token")
}
