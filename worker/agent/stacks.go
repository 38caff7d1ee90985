package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

const (
	stackWait    = 3 * time.Second // for a shim's answer; it asks a rank for 1 s
	maxQuestions = 16              // that wait for one shim
)

// question is one for a shim that has not answered it yet. Agent.mu guards it.
type question struct {
	number uint64
	answer chan []wire.RankStack
}

// onStacks asks a shim where its ranks stand.
func (a *Agent) onStacks(ctx context.Context, m bus.Msg) {
	var r wire.AskStacks
	if err := wire.Unmarshal(m.Data, &r); err != nil {
		a.Logger.Warn("a malformed question for stacks was refused", "err", err)
		return
	}
	a.spawn(func() {
		list, err := a.stacks(ctx, r)
		reply := wire.RankStacks{Ranks: list}
		if err != nil {
			reply.Error = err.Error()
		}
		a.respond(m, reply)
	})
}

func (a *Agent) stacks(ctx context.Context, r wire.AskStacks) ([]wire.RankStack, error) {
	a.mu.Lock()
	x := a.allocs[r.Alloc]
	switch {
	case x == nil || x.gone:
		a.mu.Unlock()
		return nil, fmt.Errorf("allocation %s does not run here", clip(r.Alloc))
	case r.Generation != x.status.Generation:
		a.mu.Unlock()
		return nil, fmt.Errorf("generation %d of allocation %s does not run here", r.Generation, r.Alloc)
	case len(x.questions) >= maxQuestions:
		a.mu.Unlock()
		return nil, errors.New("too many questions wait for its shim; ask again")
	}
	x.asks++
	q := &question{number: x.asks, answer: make(chan []wire.RankStack, 1)}
	x.questions = append(x.questions, q)
	x.orders = append(x.orders, shim.AgentMessage{Type: "stacks", Ask: q.number})
	wake(x.wake)
	a.mu.Unlock()
	defer x.drop(q)
	timer := a.Clock.NewTimer(stackWait)
	defer timer.Stop()
	select {
	case list := <-q.answer:
		return list, nil
	case <-timer.C():
		return nil, errors.New("its shim did not answer")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (x *alloc) drop(q *question) {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	for i := range x.questions {
		if x.questions[i] == q {
			x.questions = append(x.questions[:i:i], x.questions[i+1:]...)
			return
		}
	}
}

// answered hands a shim's answer to whoever asked.
func (x *alloc) answered(m *shim.ShimMessage) {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	for _, q := range x.questions {
		if q.number == m.Ask {
			select {
			case q.answer <- m.Stacks:
			default: // answered twice
			}
		}
	}
}
