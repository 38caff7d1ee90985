package control

import "context"

// turn is a lock that is held over a proposal, for as long as the log takes: whoever waits
// for it gives up with the leadership.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take returns false if the context ends first.
func (t turn) take(ctx context.Context) bool {
	select {
	case t <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t turn) give() { <-t }
