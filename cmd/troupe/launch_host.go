package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// launchHost is the cluster that a launch runs on.
type launchHost struct {
	client *troupe.Client
	// environ hands the environment of the ranks to the agent of this machine.
	environ func(ctx context.Context, key string, env []string) error
	ended   func(job string) // waits until nothing of an ended job is left
	close   func()
	// keep hands the cluster on to a process of its own; nil where the cluster stays anyhow.
	keep func(ctx context.Context, j api.Job) error
}

// upRuns reports whether the current context is a cluster that `troupe up` runs on this
// machine now: a launch of its own beside it would offer the same GPUs twice.
func upRuns() bool {
	cfg, err := troupe.ReadConfig()
	if err != nil {
		return false
	}
	for _, x := range cfg.Contexts {
		if x.Name == cfg.Current && x.State != "" {
			_, alive, err := readUp(x.State)
			return err == nil && alive
		}
	}
	return false
}

// launchOn takes the cluster that the environment names or that runs here, else brings
// one up for the run.
func (a *app) launchOn(ctx context.Context, run string) (*launchHost, error) {
	if os.Getenv("TROUPE_ADDRESS") != "" || os.Getenv("TROUPE_CONTEXT") != "" || upRuns() {
		return a.launchOnKnown()
	}
	state, err := launchState(run)
	if err != nil {
		return nil, err
	}
	e, err := startEmbedded(ctx, launchEmbedded(state))
	if errors.Is(err, consensus.ErrLocked) || errors.Is(err, agent.ErrLocked) {
		return nil, fail(api.ExitConflict, "TRP-C073", "wait until it has ended, or give this one a run of its own: --rdzv-id NAME",
			"run %s is being launched already (%s)", run, state)
	}
	if err != nil {
		return nil, err
	}
	h := a.embeddedHost(e, state)
	h.keep = func(ctx context.Context, j api.Job) error {
		name, err := a.handOver(ctx, e, state, j)
		if err != nil {
			return err
		}
		h.close = func() {}
		a.tellKept(state, name, j)
		return nil
	}
	token, err := head.ReadToken(filepath.Join(state, "head"), head.AdminTokenFile)
	if err == nil {
		h.client, err = troupe.New(e.head.APIURL(), token)
	}
	if err == nil {
		err = endLeftovers(ctx, h.client, a.errLine)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// embeddedHost is a cluster of the launch's own, which ends with it.
func (a *app) embeddedHost(e *embedded, state string) *launchHost {
	return &launchHost{
		environ: func(_ context.Context, key string, env []string) error { return badEnviron(e.agent.LocalEnv(key, env)) },
		ended:   func(string) {}, // close waits for everything
		close: func() {
			ectx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := e.endAll(ectx); err != nil {
				a.note("some processes may be left: %v", err)
			}
			e.close()
			awaitShims(ectx, filepath.Join(state, "node"), "")
			dropSockets(filepath.Join(state, "node"))
		},
	}
}

// launchEmbedded are the options of such a cluster.
func launchEmbedded(state string) embeddedOptions {
	return embeddedOptions{
		state: state, api: "127.0.0.1:0", bus: "127.0.0.1:0", gpus: "auto", logger: newLogger(logFile(state)), orphan: embeddedOrphan,
	}
}

// launchOnKnown uses a cluster that `up` has started on this machine: its agent takes
// the environment of the ranks, which goes through no head.
func (a *app) launchOnKnown() (*launchHost, error) {
	cl, err := a.api()
	if err != nil {
		return nil, err
	}
	cfg, err := troupe.ReadConfig()
	if err != nil {
		return nil, err
	}
	for _, x := range cfg.Contexts {
		u, err := troupe.ParseAddress(x.Address)
		if err != nil || x.State == "" || !strings.HasSuffix(cl.Address(), "//"+u.Host) {
			continue
		}
		node := filepath.Join(x.State, "node")
		if _, err := os.Stat(node); err != nil {
			continue
		}
		return &launchHost{
			client: cl,
			environ: func(ctx context.Context, key string, env []string) error {
				return badEnviron(agent.SendLocalEnv(ctx, node, key, env))
			},
			// Stopping what has ended returns when its processes are gone.
			ended: func(job string) {
				sctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if _, err := cl.StopJob(sctx, job, 0, "its launcher ends"); err != nil {
					a.note("some processes may be left: %s", clean(a.problemOf(err).Detail))
				}
				awaitShims(sctx, node, job)
			},
			close: func() {},
		}, nil
	}
	return nil, fail(api.ExitNever, "TRP-C078", "unset TROUPE_ADDRESS and TROUPE_CONTEXT to launch on this machine alone, or use: troupe run",
		"no agent of the cluster at %s is known on this machine, and launch hands its environment to one", cl.Address())
}

// badEnviron makes what an agent says of an environment the user's to mend.
func badEnviron(err error) error {
	if err == nil {
		return nil
	}
	return malformed("look at the output of: env", "the environment cannot be handed to the ranks: %v", err)
}

// endLeftovers ends what a launch left that was killed: the folder is ours alone, so
// nobody waits for those jobs, and the run takes one at a time.
func endLeftovers(ctx context.Context, cl *troupe.Client, say func(format string, args ...any)) error {
	l, err := cl.Jobs(ctx, 0)
	if err != nil {
		return err
	}
	for _, j := range l.Items {
		if j.State.Terminal() {
			continue
		}
		_, err := cl.StopJob(ctx, j.ID, 0, "its launcher is gone")
		if p, ok := errors.AsType[*api.Problem](err); ok && p.Code == "TRP-N504" {
			// Its other hosts ended with their launchers, or end with their leases.
			say("%s", p.Detail)
			_, err = cl.WaitJob(ctx, j.ID, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// launchState is where the cluster of one launch lives: by run, so that the next
// launch of the same script finds its checkpoints.
func launchState(run string) (string, error) {
	d, err := defaultState()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(d), "launch", run), nil
}
