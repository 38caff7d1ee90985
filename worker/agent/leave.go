package agent

import (
	"context"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// leaving is how far a node is with saying that it goes; Agent.mu guards it.
type leaving struct {
	asked bool
	told  bool // a head has taken it down
}

// leaveGrace is how long a node that leaves waits at least for the head to end what runs on
// it.
const leaveGrace = 2 * time.Second

// Leave tells the head that this node goes: it gets nothing new, and groups that may be
// smaller go on without it, which is not a failure. It returns when the head has ended
// what ran here, in order if its ranks can agree on a last step, or after grace, at least
// 2 s; ctx bounds the wait for the head to hear of it. EndAll comes after it.
func (a *Agent) Leave(ctx context.Context, grace time.Duration) error {
	a.mu.Lock()
	a.leaving.asked, a.open = true, false
	a.mu.Unlock()
	wake(a.wakeSession)
	until := time.Duration(0)
	for {
		a.mu.Lock()
		told, busy := a.leaving.told, false
		for _, x := range a.allocs {
			busy = busy || !x.gone && (x.status.State == wire.AllocRunning || x.status.State == wire.AllocEnding)
		}
		a.mu.Unlock()
		now := a.Clock.Boot()
		if told && until == 0 {
			until = now + max(grace, leaveGrace)
		}
		if told && (!busy || now >= until) {
			return nil
		}
		if !told && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := a.Clock.Sleep(context.WithoutCancel(ctx), 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// launch is what differs on this host from the job's specification: a launch command on
// each host has its own folder and its own interpreter.
type launch struct {
	dir     string
	command []string
}

// launches holds them by the key of the launch's environment; as many as environments.
type launches struct{ byKey map[string]launch }

// local is the attempt as this host runs it.
func (l *launches) local(at *wire.AttemptSpec) *wire.AttemptSpec {
	own, ok := l.byKey[at.LaunchEnv]
	if !ok {
		return at
	}
	c := *at
	c.WorkingDir, c.Command = own.dir, own.command
	return &c
}

// LocalLaunch is LocalEnv for a launch over several hosts: ranks on this host start in
// dir and run command, whatever the job's specification says.
func (a *Agent) LocalLaunch(key string, env []string, dir string, command []string) error {
	if err := a.LocalEnv(key, env); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.launches.byKey == nil || len(a.launches.byKey) >= maxEnvs {
		a.launches.byKey = map[string]launch{}
	}
	a.launches.byKey[key] = launch{dir: dir, command: append([]string(nil), command...)}
	return nil
}
