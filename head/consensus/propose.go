package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Result is what became of a proposal.
type Result struct {
	Index uint64 // of its log entry
	Value any    // what Machine.Apply returned
}

// Outcome is a Result, or why there is none.
type Outcome struct {
	Result
	Err error
}

// Propose puts data into the log and returns once it is on disk (of most voters) and
// applied here. data belongs to the node from now on. ErrNotLeader, ErrTooLarge,
// ErrBusy, ErrClosed, ErrStopped and the error of an already ended ctx mean that
// nothing was proposed; ErrOutcomeUnknown means what it says.
func (n *Node) Propose(ctx context.Context, data []byte) (Result, error) {
	out := n.ProposeAll(ctx, [][]byte{data})[0]
	return out.Result, out.Err
}

// ProposeAll is Propose of several entries, which stand in the log in this order and close
// enough to one another to share a write to disk. Each has its own outcome: one that is
// not taken, or not applied, is no reason for the others not to be.
func (n *Node) ProposeAll(ctx context.Context, all [][]byte) []Outcome {
	out := make([]Outcome, len(all))
	var taken []int
	for i, data := range all {
		if out[i].Err = n.take(ctx, data); out[i].Err == nil {
			taken = append(taken, i)
		}
	}
	if len(taken) == 0 {
		return out
	}
	// The library's futures cannot be waited for together with a context. The
	// goroutine outlives a caller that gave up and is bounded by MaxQueued.
	done := make(chan []Outcome, 1)
	go func() { done <- n.apply(all, taken) }()
	var unknown error
	select {
	case got := <-done:
		n.merge(out, taken, got)
		return out
	case <-ctx.Done():
		unknown = context.Cause(ctx)
	case <-n.stopped:
		select {
		case got := <-done:
			n.merge(out, taken, got)
			return out
		default:
		}
		unknown = n.stopCause()
	case <-n.closed:
		unknown = errors.New("the node was closed")
	}
	for _, i := range taken {
		out[i].Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, unknown)
	}
	return out
}

// take gives an entry its place in the queue, or says why it has none.
func (n *Node) take(ctx context.Context, data []byte) error {
	if len(data) > MaxProposal {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(data), MaxProposal)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return n.begin(true, len(data))
}

// apply hands the entries to Raft and waits for each.
func (n *Node) apply(all [][]byte, taken []int) []Outcome {
	futures := make([]raft.ApplyFuture, len(taken))
	for k, i := range taken {
		futures[k] = n.raft.ApplyLog(raft.Log{Data: all[i]}, 0)
	}
	got := make([]Outcome, len(taken))
	for k, f := range futures {
		err := f.Error()
		if got[k].Err = proposeError(err, f.Index()); err == nil {
			got[k].Result = Result{Index: f.Index(), Value: f.Response()}
		}
		n.end(true, len(all[taken[k]]))
	}
	return got
}

func (n *Node) merge(out []Outcome, taken []int, got []Outcome) {
	for k, i := range taken {
		if out[i] = got[k]; out[i].Err != nil {
			continue
		}
		if _, ok := out[i].Value.(notApplied); ok {
			out[i] = Outcome{Err: fmt.Errorf("%w: %w", ErrOutcomeUnknown, n.stopCause())}
		}
	}
}

// proposeError sorts the library's errors into "was not proposed" and "unknown".
func proposeError(err error, index uint64) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown) && index == 0:
		return ErrClosed
	default:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}
