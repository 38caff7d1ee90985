package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// endSignals are the signals that end this host's part, as --signals-to-handle says; what
// whoever started this command had ignored stays so.
func (r *hostRun) endSignals() []os.Signal {
	out := []os.Signal{os.Interrupt} // an empty list would mean every signal there is
	for _, name := range r.set.Signals {
		if s := unix.SignalNum(name); s != 0 && !signal.Ignored(s) {
			out = append(out, s)
		}
	}
	if !slices.Contains(r.set.Signals, "SIGINT") {
		out = out[1:]
	}
	if len(out) == 0 {
		return []os.Signal{syscall.SIGTERM}
	}
	return out
}

// passSignals sends SIGUSR1 and SIGUSR2 on to the ranks of this host until it is undone.
func (r *hostRun) passSignals() (undo func()) {
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGUSR1, syscall.SIGUSR2)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-c:
				if sig, ok := s.(syscall.Signal); ok {
					r.pass(sig)
				}
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}

// pass sends a signal to the main processes of the ranks here. Each host's launcher gets
// its own signal from whoever sends them, so that none goes to another host's ranks.
func (r *hostRun) pass(s syscall.Signal) {
	seen := r.seen.Load()
	if seen == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	j, err := r.a.client.Job(ctx, seen.ID) // as it is now: numbers of processes are used again
	if err != nil || len(j.Attempts) == 0 {
		return
	}
	for _, rank := range j.Attempts[len(j.Attempts)-1].Ranks {
		if rank.Node == r.out.node && rank.PID > 1 {
			_ = syscall.Kill(int(rank.PID), s) // it may have ended
		}
	}
}
