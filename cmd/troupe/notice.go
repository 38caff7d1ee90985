package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// noticeSignal tells an agent that its machine is about to be taken away. It is the one
// that says that power fails, and nothing else here takes it.
const noticeSignal = syscall.SIGPWR

// noticeFlags say how a node hears that it is about to be taken away.
type noticeFlags struct {
	file  string
	grace time.Duration
}

func (n *noticeFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&n.file, "notice-file", "", "`file`: once it is there this node is about to be taken away and drains; it may hold the time left (120s) or the moment (RFC 3339)")
	f.DurationVar(&n.grace, "notice-grace", agent.DefaultNoticeGrace, "`time`: left after a notice that names none, as SIGPWR")
}

// check makes the path independent of the working folder.
func (n *noticeFlags) check() error {
	if n.grace <= 0 || n.grace > wire.MaxNoticeLeft {
		return usage("--notice-grace %s: want more than 0 and at most %s", n.grace, wire.MaxNoticeLeft)
	}
	if n.file == "" {
		return nil
	}
	abs, err := filepath.Abs(n.file)
	if err != nil {
		return fmt.Errorf("--notice-file %s: %w", n.file, err)
	}
	n.file = abs
	return nil
}

// noticing takes the signal from early on, so that one which comes while the agent starts
// does not end it.
type noticing struct{ c chan os.Signal }

func (n *noticeFlags) listen() noticing {
	l := noticing{make(chan os.Signal, 1)}
	signal.Notify(l.c, noticeSignal)
	return l
}

func (l noticing) stop() { signal.Stop(l.c) }

// pass hands the signal to an agent until ctx ends.
func (l noticing) pass(ctx context.Context, ag *agent.Agent) {
	go func() {
		for {
			select {
			case <-l.c:
				ag.NoticeSignal("SIGPWR")
			case <-ctx.Done():
				return
			}
		}
	}()
}
