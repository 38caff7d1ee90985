package loss

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

type netDialer struct{}

func (*netDialer) dial(path string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

// TestLoss takes one thing after another away from one cluster. Figures are printed and
// judged elsewhere: in virtual time, and by bench on a machine that does nothing else.
func TestLoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, "n1", "n2", "n3")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := w.submit("steps", 2, exe, "rank")
	placed := w.job(id).Attempts[0].Ranks
	first := placed[0].Node
	w.until("steps are published", func() (bool, string) {
		r := w.job(id).Attempts[0].Ranks
		return r[0].Step > 5 && r[1].Step > 5, fmt.Sprint(r)
	})
	same := func(what string) {
		t.Helper()
		j := w.job(id)
		if len(j.Attempts) != 1 || j.Attempts[0].Ranks[0].PID != placed[0].PID || j.Attempts[0].Ranks[1].PID != placed[1].PID {
			t.Fatalf("%s: ranks were restarted: %+v, were %+v", what, j, placed)
		}
	}

	// The agent alone is killed: its shim speaks for it, over TLS with the node's own
	// certificate; nothing restarts, and the next agent finds it.
	for _, pid := range w.pids(first, "worker start") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	t.Logf("agent killed: agentless after %s", w.waitNode(first, "AGENTLESS"))
	step := w.job(id).Attempts[0].Ranks[0].Step
	w.until("the shim tells of steps", func() (bool, string) {
		now := w.job(id).Attempts[0].Ranks[0].Step
		return now > step+10, fmt.Sprint(step, now)
	})
	same("agent killed")
	w.startWorker(first)
	t.Logf("agent started: taken up again after %s", w.waitNode(first, "READY"))
	same("agent back")

	// The agent is restarted on purpose, as for an upgrade.
	t.Logf("%s", w.troupe("worker", "restart", "--state", filepath.Join(w.dir, first)))
	w.waitNode(first, "READY")
	same("agent restarted")

	w.troupe("job", "stop", id, "--grace", "0s", "--yes")

	// A node that nothing is heard of, and nobody proves alive.
	quiet := w.submit("quiet", 2, "sleep", "1000")
	at := w.job(quiet).Attempts[0].Ranks
	w.ip("-n", w.ns(hub), "link", "set", "v"+at[1].Node, "down")
	cut := time.Now()
	w.waitNode(at[1].Node, "LOST")
	lost := time.Since(cut)
	w.waitAttempt(quiet, 1)
	t.Logf("cut off: lost after %s, running elsewhere after %s", lost, time.Since(cut))
	w.ip("-n", w.ns(hub), "link", "set", "v"+at[1].Node, "up")
	w.waitNode(at[1].Node, "READY")
	w.until("the cut-off rank ends", func() (bool, string) {
		left := w.pids(at[1].Node, "sleep 1000")
		return len(left) == 0, fmt.Sprint(left)
	})

	// Every process of a node is killed at once.
	at = w.job(quiet).Attempts[1].Ranks
	killed := time.Now()
	w.killAll(at[0].Node)
	w.waitNode(at[0].Node, "LOST")
	lost = time.Since(killed)
	w.waitAttempt(quiet, 2)
	t.Logf("node killed: lost after %s, running elsewhere after %s", lost, time.Since(killed))
}
