package agent

import (
	"context"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// Bounds of one report.
const (
	maxEvents      = 256
	maxReportBytes = 512 << 10
)

// keepReporting carries events to the head until they are acknowledged. One report
// is on its way at a time, so that the order of an allocation's events is kept.
func (a *Agent) keepReporting(ctx context.Context) {
	var wait backoff
	for ctx.Err() == nil {
		r := a.nextReport()
		if len(r.Events) == 0 {
			a.pause(ctx, a.wakeReport, fetchEvery)
			continue
		}
		var ack wire.ReportAck
		err := a.call(ctx, wire.HeadReport+a.NodeID, callTimeout, r, &ack)
		if err == nil && ack.Unknown {
			a.closeSession("the head does not know the session of a report")
		}
		if err != nil || !a.accepted(ack.Acked) {
			if ctx.Err() == nil {
				a.Logger.Debug("a report was not acknowledged", "events", len(r.Events), "err", err)
			}
			_ = a.Clock.Sleep(ctx, wait.next())
			continue
		}
		wait.reset()
	}
}

// nextReport collects what is not acknowledged, oldest first for each allocation.
func (a *Agent) nextReport() wire.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := wire.Report{Session: a.session}
	if !a.open {
		return r
	}
	ids := make([]string, 0, len(a.allocs))
	for id, x := range a.allocs {
		if len(x.pending) > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	size := 0
	for _, id := range ids {
		for _, ev := range a.allocs[id].pending {
			size += eventSize(&ev)
			if len(r.Events) >= maxEvents || len(r.Events) > 0 && size > maxReportBytes {
				return r
			}
			r.Events = append(r.Events, ev)
		}
	}
	return r
}

// eventSize is about what an event takes in a message.
func eventSize(ev *wire.AllocEvent) int {
	n := 256 + len(ev.Message) + 48*len(ev.PIDs)
	if x := ev.Exit; x != nil {
		n += 128 + len(x.Message) + len(x.Traceback) + len(x.ErrorTime)
	}
	return n
}

// accepted notes acknowledgements and passes them on to the shims. It reports
// whether there was any news.
func (a *Agent) accepted(acks []wire.SeqAck) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	news := false
	for _, ack := range acks {
		x := a.allocs[ack.Alloc]
		if x == nil {
			continue
		}
		seq := min(ack.Seq, x.seq) // what was not told cannot be acknowledged
		if seq <= x.acked {
			continue
		}
		news = true
		x.acked = seq
		n := 0
		for n < len(x.pending) && x.pending[n].Seq <= seq {
			n++
		}
		x.pending = slices.Clone(x.pending[n:])
		wake(x.wake)
	}
	return news
}

// maxPrepares bounds the reports of prepared steps that are on their way.
const maxPrepares = 32

type prepareKey struct {
	alloc      string
	generation uint64
	step, rank int64
}

// prepared asks the head about a prepared step. The shim repeats itself until it
// hears a verdict, so nothing is kept here and what is too much is dropped.
func (a *Agent) prepared(ctx context.Context, p wire.Prepared) {
	key := prepareKey{p.Alloc, p.Generation, p.Step, p.Rank}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.preparing[key] || !a.open {
		return
	}
	select {
	case a.prepares <- struct{}{}:
	default:
		return
	}
	a.preparing[key] = true
	a.spawnLocked(func() {
		var v wire.Verdict
		err := a.call(ctx, wire.HeadPrepared+a.NodeID, callTimeout, p, &v)
		<-a.prepares
		a.mu.Lock()
		delete(a.preparing, key)
		a.mu.Unlock()
		switch {
		case err != nil:
			if ctx.Err() == nil {
				a.Logger.Debug("a prepared step was not answered", "alloc", p.Alloc, "step", p.Step, "err", err)
			}
		case v.Generation != p.Generation || v.Step != p.Step:
			a.Logger.Warn("a verdict about another step was ignored", "alloc", p.Alloc, "step", p.Step)
		default:
			v.Alloc = p.Alloc
			a.verdict(v)
		}
	})
}

// verdict passes the head's word on a prepared step on to the shim.
func (a *Agent) verdict(v wire.Verdict) {
	if v.State != "committed" && v.State != "dropped" {
		return // pending: the shim asks again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.allocs[v.Alloc]
	if x == nil || len(x.verdict) >= maxVerdicts {
		return
	}
	x.verdict = append(x.verdict, v)
	wake(x.wake)
}

var _ Shim = (*shim.Client)(nil)
