package agent

import (
	"context"
	"time"

	"github.com/troupe-runtime/troupe/worker/process"
)

// marksEvery is how long the marks of allocations that have ended are gathered before the
// machine is searched for them, once for all.
const marksEvery = 5 * time.Second

// markSweeper is a Launcher that finds processes by their marks. One that cannot has no
// processes, as in the simulated cluster.
type markSweeper interface {
	// SweepMarks ends what carries one of the marks.
	SweepMarks(ctx context.Context, cookies []string) process.Result
}

// SweepMarks implements markSweeper.
func (launcher) SweepMarks(ctx context.Context, cookies []string) process.Result {
	return process.SweepMarks(ctx, cookies)
}

// gatherMark has the machine searched for an ended allocation's mark. Its shim has proven by
// group and tree that nothing of it is left; what a program outside has started for it, with
// its environment, is in neither.
func (x *alloc) gatherMark() {
	if _, ok := x.a.Launcher.(markSweeper); !ok || x.cfg.Cookie == "" {
		return
	}
	x.a.mu.Lock()
	x.a.marks = append(x.a.marks, x.cfg.Cookie)
	x.a.mu.Unlock()
	wake(x.a.wakeMarks)
}

// keepMarks searches for the marks that were gathered.
func (a *Agent) keepMarks(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-a.wakeMarks:
			if a.Clock.Sleep(ctx, marksEvery) == nil {
				a.sweepMarks(ctx)
			}
		}
	}
}

func (a *Agent) sweepMarks(ctx context.Context) {
	l, ok := a.Launcher.(markSweeper)
	a.mu.Lock()
	list := a.marks
	a.marks = nil
	a.mu.Unlock()
	if !ok || len(list) == 0 {
		return
	}
	res := l.SweepMarks(ctx, list)
	if res.Killed > 0 {
		a.Logger.Warn("processes that programs outside had started for ended allocations were ended", "count", res.Killed)
	}
	if !res.Clean() && ctx.Err() == nil {
		a.Logger.Error("what carries the mark of an ended allocation", "err", res.Error())
		a.mu.Lock()
		a.marks = append(a.marks, list...)
		a.mu.Unlock()
		wake(a.wakeMarks)
	}
}
