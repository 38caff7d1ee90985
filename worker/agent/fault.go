package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// Faults are injected on the request of whoever may end the job anyhow. What a fault
// leaves behind, a stopped process, a full disk, a blocked route, ends by itself, also
// when the agent is gone by then.

// lastWords is how long an agent that is about to kill itself gives its answer to leave.
const lastWords = 100 * time.Millisecond

// onFault harms a job of this node on purpose.
func (a *Agent) onFault(ctx context.Context, m bus.Msg) {
	var f wire.Fault
	if err := wire.Unmarshal(m.Data, &f); err != nil {
		a.Logger.Warn("a malformed fault was refused", "err", err)
		return
	}
	a.spawn(func() {
		did, after, err := a.inject(ctx, &f)
		reply := wire.FaultReply{Did: did}
		if err != nil {
			reply.Error = err.Error()
		}
		a.Logger.Warn("a fault was asked for", "kind", f.Kind, "job", f.Job, "generation", f.Generation, "did", did, "err", err)
		a.respond(m, reply)
		if err == nil && after != nil {
			if a.Clock.Sleep(ctx, lastWords) == nil {
				after()
			}
		}
	})
}

// inject does what a fault asks for, or refuses; after is what comes once that was told.
func (a *Agent) inject(ctx context.Context, f *wire.Fault) (did string, after func(), err error) {
	a.mu.Lock()
	x := a.allocs[f.Alloc]
	newest := a.newest
	var st wire.AllocStatus
	if x != nil {
		st = x.status
	}
	a.mu.Unlock()
	switch {
	case f.Position.Term < newest.Term:
		return "", nil, fmt.Errorf("the request is of term %d, this node has heard of term %d", f.Position.Term, newest.Term)
	case x == nil || st.Generation != f.Generation || st.State != wire.AllocRunning:
		return "", nil, fmt.Errorf("generation %d of %s does not run here", f.Generation, f.Job)
	case f.For < 0 || f.For > api.MaxFaultFor:
		return "", nil, fmt.Errorf("a fault lasts at most %s", api.MaxFaultFor)
	}
	switch f.Kind {
	case api.FaultKillRank, api.FaultStopRank, api.FaultAtSave:
		pid := int64(0)
		for _, s := range st.Steps {
			if s.Rank == f.Rank {
				pid = s.PID
			}
		}
		if pid == 0 {
			return "", nil, fmt.Errorf("rank %d does not run here", f.Rank)
		}
		x.order(shim.AgentMessage{Type: "fault", Fault: f})
		return rankFault(f, pid), nil, nil
	case api.FaultKillAgent, api.FaultKillNode:
		if !a.OwnProcess {
			return "", nil, errors.New("the agent here shares its process with the head, which would die with it; kill that one by hand, or start them apart with `troupe head start` and `troupe worker start`")
		}
		if f.Kind == api.FaultKillAgent {
			return fmt.Sprintf("SIGKILL to the agent (pid %d)", os.Getpid()), killSelf, nil
		}
		shims := a.shimPIDs()
		return fmt.Sprintf("SIGKILL to the agent (pid %d), %d shims and all their ranks", os.Getpid(), len(shims)), func() {
			for _, pid := range shims {
				_ = unix.Kill(pid, unix.SIGKILL) // their ranks die with them
			}
			killSelf()
		}, nil
	case api.FaultFillDisk:
		did, err = a.fillDisk(ctx, f)
	case api.FaultCut:
		return a.cut(f.For.D())
	default:
		err = fmt.Errorf("this node's version does not know the fault %.40q", f.Kind)
	}
	return did, nil, err
}

func rankFault(f *wire.Fault, pid int64) string {
	if f.Kind == api.FaultStopRank {
		return fmt.Sprintf("SIGSTOP to rank %d (pid %d), SIGCONT in %s", f.Rank, pid, f.For)
	}
	if f.Kind == api.FaultAtSave {
		return fmt.Sprintf("SIGKILL to rank %d (pid %d) once its next save is %s", f.Rank, pid, f.Point)
	}
	return fmt.Sprintf("SIGKILL to rank %d (pid %d)", f.Rank, pid)
}

func killSelf() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }

// shimPIDs are the processes of the living shims.
func (a *Agent) shimPIDs() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []int
	for _, x := range a.allocs {
		if x.shimPID > 1 && !x.gone {
			out = append(out, x.shimPID)
		}
	}
	return out
}

// order hands a message to the shim with the next that it is told.
func (x *alloc) order(m shim.AgentMessage) {
	x.a.mu.Lock()
	x.orders = append(x.orders, m)
	x.a.mu.Unlock()
	wake(x.wake)
}

// fillDisk takes what is free on the store's file system. The file has no name, so the
// kernel gives the space back with the last descriptor, whatever becomes of the agent.
func (a *Agent) fillDisk(ctx context.Context, f *wire.Fault) (string, error) {
	if f.Store == "" || strings.Contains(f.Store, "://") {
		return "", fmt.Errorf("the job's store %q is no directory", f.Store)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(f.Store, &st); err != nil {
		return "", fmt.Errorf("look at the file system of %s: %w", f.Store, err)
	}
	fd, err := unix.Open(f.Store, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", fmt.Errorf("make a file without a name in %s: %w (the file system must know O_TMPFILE)", f.Store, err)
	}
	taken := int64(0)
	// From large to small pieces: what others free meanwhile is taken as well.
	for size := int64(st.Bavail) * st.Bsize; size >= st.Bsize; {
		switch err := unix.Fallocate(fd, 0, taken, size); {
		case err == nil:
			taken += size
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			size /= 2
		case errors.Is(err, unix.EINTR):
		default:
			_ = unix.Close(fd)
			return "", fmt.Errorf("take the space of %s: %w", f.Store, err)
		}
	}
	a.spawn(func() {
		defer unix.Close(fd)
		_ = a.Clock.Sleep(ctx, f.For.D())
	})
	return fmt.Sprintf("%d MiB taken, the file system of %s is full for %s", taken>>20, f.Store, f.For), nil
}
