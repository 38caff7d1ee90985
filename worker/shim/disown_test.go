package shim_test

import (
	"os/exec"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// sleeper is a process that may own a job, and kill ends it.
func sleeper(t *testing.T) (owner *api.Owner, kill func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { cmd.Process.Kill(); cmd.Wait() }
	t.Cleanup(kill)
	p, err := process.ReadProc(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return &api.Owner{BootID: boot, PID: int64(p.PID), StartTime: p.Start}, kill
}

// The word that a job goes on without its owner may come before the owner's end, or
// within the grace after it; either way the ranks run to their own end.
func TestDisownedRanksOutliveTheOwner(t *testing.T) {
	for _, late := range []bool{false, true} {
		owner, kill := sleeper(t)
		a := newAgent(t, "fallback", func(c *shim.Config) { c.Owner = owner })
		a.start(a.spec(1, "sh", "-c", "sleep 3; exit 4"))
		a.wait(wire.EventStarted)
		if !late {
			a.c.Send(shim.AgentMessage{Type: "disown"})
			a.c.Send(shim.AgentMessage{Type: "status"}) // obeyed in order: disown has been, too
		}
		kill()
		if late {
			a.until("owner-gone", func() bool { return a.event(wire.EventOwnerGone, 0) != nil })
			a.c.Send(shim.AgentMessage{Type: "disown"})
		}
		if e := a.wait(wire.EventRankExited); e.Exit == nil || e.Exit.Code != 4 {
			t.Errorf("late=%t: the rank ended with %+v, want its own code 4", late, e.Exit)
		}
		a.wait(wire.EventEnded)
		a.nothingLeft()
	}
}
