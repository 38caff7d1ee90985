package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/join"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

const (
	// ownerLost is how long a host waits for the owner of the endpoint, once it is silent.
	// Its ranks have ended by then, at the orphan time.
	ownerLost = 10 * time.Second
	joinEvery = 500 * time.Millisecond
)

// errOwnerLost: the host that keeps the run is gone.
var errOwnerLost = errors.New("the host that keeps the run does not answer")

// join runs this host's ranks in the run that another host keeps.
func (r *hostRun) join(ctx context.Context, key join.Key) error {
	sctx, stop := signal.NotifyContext(ctx, r.endSignals()...)
	defer stop()
	defer r.passSignals()()
	dir, unlock, err := hostFolder(r.run)
	if err != nil {
		return err
	}
	defer unlock()
	m, w, err := r.knock(sctx, dir, key)
	if err != nil {
		if sctx.Err() != nil {
			return &exitError{code: api.ExitInterrupted}
		}
		return err
	}
	r.key = w.Key
	log := newLogger(logFile(dir))
	o, err := agentOptions(dir, m.node, "auto", log)
	if err != nil {
		return err
	}
	o.Name, o.Labels, o.Address = w.Name, r.labels(), m.local.String()
	if r.meet.LocalAddr != "" {
		o.Address = r.meet.reachable()
	}
	cctx, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	if o.Bus, err = m.connect(cctx, log); err != nil {
		return err
	}
	defer o.Bus.Close()
	lost := make(chan struct{}, 1)
	watchOwner(cctx, o.Bus, lost)
	ag, err := agent.New(o)
	if err != nil {
		return err
	}
	if err := badEnviron(ag.LocalLaunch(w.Key, r.environ(o.Address), r.dir, r.words)); err != nil {
		ag.Close()
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := ag.Run(cctx); err != nil && cctx.Err() == nil {
			r.say("the agent of this host ended: %v", err)
		}
	}()
	defer func() {
		disconnect()
		<-ended
		dropSockets(dir)
	}()
	u := "https://" + net.JoinHostPort(m.joined.Remote.String(), r.meet.port)
	cl, err := troupe.New(u, w.Token, troupe.WithPin(m.joined.Root))
	if err != nil {
		return err
	}
	cl.Patience = ownerLost
	r.a.client, r.out.node = cl, w.Name
	j, err := r.followHere(sctx, cl, lost)
	left := sctx.Err() != nil
	r.leave(ag, dir, left)
	switch {
	case left:
		return &exitError{code: api.ExitInterrupted}
	case errors.Is(err, errOwnerLost), errors.Is(err, troupe.ErrUnreachable):
		return fail(api.ExitRetry, "TRP-R075", "start the same command on all hosts again: it resumes from the newest committed step",
			"host %s, which keeps the run, is lost; the ranks here have ended", r.meet.host)
	case err != nil:
		return err
	}
	r.a.keepErrors(ctx, cl, &j, r.out)
	if j.State == api.Stopped {
		return &exitError{code: api.ExitInterrupted}
	}
	return r.a.launchResult(j, r.launchRun)
}

// leave says goodbye and ends what runs here.
func (r *hostRun) leave(ag *agent.Agent, dir string, told bool) {
	if told {
		r.say("this host leaves the run; the others go on if they are enough")
	}
	lctx, done := context.WithTimeout(context.Background(), 3*time.Second)
	_ = ag.Leave(lctx, r.set.Shutdown) // a head that is gone need not be told
	done()
	ctx, cancel := context.WithTimeout(context.Background(), r.set.Shutdown+20*time.Second)
	defer cancel()
	if err := ag.EndAll(ctx); err != nil {
		r.say("some processes may be left: %v", err)
	}
	awaitShims(ctx, dir, "")
}

// watchOwner tells when the bus has been away for so long that the owner is lost.
func watchOwner(ctx context.Context, b interface{ Connected() bool }, lost chan<- struct{}) {
	go func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		seen := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if b.Connected() {
					seen = now
				} else if now.Sub(seen) >= ownerLost {
					lost <- struct{}{}
					return
				}
			}
		}
	}()
}

// knock asks to be let in until the owner answers or the join time-out is over.
func (r *hostRun) knock(ctx context.Context, dir string, key join.Key) (*membership, *welcome, error) {
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	m, _, err := openMembership(dir, r.meet.address())
	if err != nil {
		return nil, nil, err
	}
	local := r.meet.LocalAddr
	if local != "" {
		local = r.meet.reachable()
	}
	begin := time.Now()
	for told := false; ; {
		err := m.ask(ctx, r.meet.address(), local, key, r.hello(name))
		if err == nil {
			break
		}
		if p := joinProblem(r.meet.address(), err); p != nil {
			return nil, nil, p
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if time.Since(begin) > r.meet.join {
			return nil, nil, fail(api.ExitUnreachable, "TRP-R069", "start the same command on the host of the endpoint, or give it longer: --rdzv-conf=join_timeout=SECONDS",
				"nobody answered at %s for %s: %v", r.meet.address(), r.meet.join, err)
		}
		if !told {
			r.say("waiting for the host of the endpoint at %s", r.meet.address())
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(joinEvery):
		}
	}
	var w welcome
	if err := json.Unmarshal(m.joined.Answer, &w); err != nil || w.Key == "" {
		return nil, nil, fail(api.ExitConflict, "TRP-R002", "name the endpoint of a launch, not the address of a standing cluster", "the head at %s keeps no launch", r.meet.address())
	}
	r.say("joined the run at %s as %s; %s keeps it", r.meet.address(), w.Name, r.meet.host)
	return m, &w, nil
}

// followHere prints what this host's ranks write until the run has ended.
func (r *hostRun) followHere(ctx context.Context, cl *troupe.Client, lost <-chan struct{}) (api.Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		j   api.Job
		err error
	}
	done := make(chan end, 1)
	go func() {
		id, err := r.jobOf(ctx, cl)
		if err != nil {
			done <- end{err: err}
			return
		}
		go r.tell(ctx, cl, id)
		f := newFollower(r.a, cl, id, logOptions{prefix: "none"})
		j, err := cl.Job(ctx, id)
		if err != nil {
			done <- end{err: err}
			return
		}
		f.begun[j.Attempt-1] = true // what came before this host is not its to show
		j, err = f.run(ctx)
		done <- end{j, err}
	}()
	select {
	case e := <-done:
		return e.j, e.err
	case <-lost:
		cancel()
		<-done
		return api.Job{}, errOwnerLost
	}
}

// jobOf finds the run's job: the live one that was submitted with its key.
func (r *hostRun) jobOf(ctx context.Context, cl *troupe.Client) (string, error) {
	for {
		l, err := cl.Jobs(ctx, 0)
		if err != nil {
			return "", err
		}
		for _, j := range l.Items {
			if j.Spec.LaunchEnv == r.key {
				return j.ID, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tell says which hosts make up each attempt, and what the run waits for.
func (r *hostRun) tell(ctx context.Context, cl *troupe.Client, id string) {
	var index uint64
	attempt, waits := int64(-1), ""
	for {
		j, err := cl.NextJob(ctx, id, index)
		if err != nil || j.State.Terminal() {
			return
		}
		index = j.Index
		r.seen.Store(&j)
		if j.State == api.Queued && j.Reason != nil && j.Reason.Text != waits {
			waits = j.Reason.Text
			r.say("waiting: %s", clean(waits))
		}
		if n := len(j.Attempts); n > 0 && j.Attempts[n-1].Number > attempt {
			at := j.Attempts[n-1]
			attempt = at.Number
			if n > 1 && j.Attempts[n-2].Failure != nil {
				r.say("attempt %d ended: %s", j.Attempts[n-2].Number, clean(j.Attempts[n-2].Failure.Message))
			}
			r.say("attempt %d: %s on %s", at.Number, plural(int64(len(at.Ranks)), "rank"), hostsIn(at, r.out.node))
		}
	}
}

// hostsIn names the hosts of an attempt, and says if this one is not among them.
func hostsIn(at api.Attempt, own string) string {
	seen := map[string]bool{}
	text := ""
	for _, rk := range at.Ranks {
		if !seen[rk.Node] {
			if seen[rk.Node] = true; text != "" {
				text += ", "
			}
			text += rk.Node
		}
	}
	if !seen[own] {
		text += fmt.Sprintf("; %s waits, and takes over when one of them leaves", own)
	}
	return text
}
