package loss

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestManagementNetworkSilent: for half a minute the head hears nothing of a node, both ways
// and without a word from the network, while the ranks go on and those on the other node
// prove it. The node is suspect all that time, nothing restarts, and afterwards it is as if
// nothing had been. Short runs are silent for a shorter time.
func TestManagementNetworkSilent(t *testing.T) {
	t.Parallel()
	lasts := 30 * time.Second
	if testing.Short() {
		lasts = 6 * time.Second // longer than after which a node that nobody proves alive is lost
	}
	w := newWorld(t, nil, "n1", "n2")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := w.submit("steps", 2, exe, "rank")
	placed := w.job(id).Attempts[0].Ranks
	steps := func(least int64) {
		t.Helper()
		w.until("steps are published", func() (bool, string) {
			r := w.job(id).Attempts[0].Ranks
			return r[0].Step > least && r[1].Step > least, fmt.Sprint(r)
		})
	}
	steps(5)

	node, wrong := placed[1].Node, "02:00:00:00:00:99"
	w.ip("-n", w.ns(node), "neigh", "replace", "10.77.0.1", "lladdr", wrong, "dev", "eth0", "nud", "permanent")
	silent := time.Now()
	t.Logf("suspect after %s", w.waitNode(node, "SUSPECT"))
	heard := w.job(id).Attempts[0].Ranks[1].Step
	w.until("the silence is over", func() (bool, string) {
		if n := w.node(node); n.State != "SUSPECT" && n.State != "unknown" {
			t.Fatalf("after %s: %+v", time.Since(silent), n)
		}
		return time.Since(silent) > lasts, ""
	})
	during := w.job(id).Attempts[0].Ranks
	if during[0].Step < heard+lasts.Milliseconds()/200 || during[1].Step > heard+5 {
		t.Errorf("rank 0 did not go on, or rank 1 was heard: %+v, when the silence began at %d", during, heard)
	}
	w.ip("-n", w.ns(node), "neigh", "del", "10.77.0.1", "dev", "eth0")
	t.Logf("ready %s after the silence", w.waitNode(node, "READY"))
	steps(during[0].Step) // of both ranks: the other one went on, too
	j := w.job(id)
	if len(j.Attempts) != 1 || j.Attempts[0].Ranks[0].PID != placed[0].PID || j.Attempts[0].Ranks[1].PID != placed[1].PID {
		t.Fatalf("ranks were restarted: %+v, were %+v", j, placed)
	}
}
