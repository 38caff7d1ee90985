package loss

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// mayCut looks whether this kernel can take away the way to one port, as the fault does.
func mayCut(t *testing.T) {
	t.Helper()
	ns := fmt.Sprintf("tc%d", os.Getpid()%100000)
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Skipf("network namespaces cannot be made: %s", bytes.TrimSpace(out))
	}
	defer func() { _ = exec.Command("ip", "netns", "del", ns).Run() }()
	rule := strings.Fields("rule add pref 1 to 10.77.0.1 ipproto tcp dport 7602 blackhole")
	if out, err := exec.Command("ip", append([]string{"-n", ns}, rule...)...).CombinedOutput(); err != nil {
		t.Skipf("network namespaces cannot route by port (CONFIG_IP_MULTIPLE_TABLES): %s", bytes.TrimSpace(out))
	}
}

// cutOff reports whether a node's way to the head is blocked now.
func (w *world) cutOff(node string) bool {
	w.t.Helper()
	out, err := exec.Command("ip", "-n", w.ns(node), "rule", "show").CombinedOutput()
	if err != nil {
		w.t.Fatalf("the rules of %s: %v: %s", node, err, out)
	}
	return strings.Contains(string(out), "blackhole")
}

// TestChaosCut cuts the node of a job that saves by itself off from the head. Nobody can
// tell the node anything: its rank ends by its lease, and only then does the job run
// elsewhere; while it does, the cut still lasts (I4). The report says what was done, what
// was noticed and how it ended.
func TestChaosCut(t *testing.T) {
	if testing.Short() {
		return // the cut lasts long enough that a busy machine sees what happens within it
	}
	t.Parallel()
	mayCut(t)
	w := newWorld(t, []string{"--lease", "5s"}, "n1", "n2")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := w.submit("alone", 1, exe, "rank")
	first := w.job(id).Attempts[0].Ranks[0]
	w.until("steps are published", func() (bool, string) {
		r := w.job(id).Attempts[0].Ranks
		return r[0].Step > 5, fmt.Sprint(r)
	})

	const lasts = 45 * time.Second
	chaos := w.command("chaos", id, "cut", "--node", first.Node, "--for", lasts.String(), "--yes", "-o", "json")
	var out, said bytes.Buffer
	chaos.Stdout, chaos.Stderr = &out, &said
	if err := chaos.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- chaos.Wait() }()
	w.until("the node is cut off", func() (bool, string) { return w.cutOff(first.Node), "" })
	cut := time.Now()
	w.waitAttempt(id, 1)
	left, still := w.pids(first.Node, exe+" rank"), w.cutOff(first.Node)
	t.Logf("running elsewhere %s after the cut", time.Since(cut))
	if len(left) > 0 || !still {
		t.Errorf("it runs elsewhere, and on %s: processes %v; cut off: %v", first.Node, left, still)
	}
	if now := w.job(id).Attempts[1].Ranks[0].Node; now == first.Node {
		t.Errorf("it runs on %s again", now)
	}
	if n := w.node(first.Node); n.State != "LOST" {
		t.Errorf("%+v", n)
	}

	select {
	case err = <-ended:
	case <-time.After(patience):
		_ = chaos.Process.Kill()
		t.Fatalf("the report does not come: %s", said.String())
	}
	var report struct {
		Strikes []struct {
			Fault     api.FaultKind
			Node      string
			Did       string
			Noticed   string
			Recovered bool
			Restarts  int64
			LostSteps int64
			Outcome   string
		}
		OK bool
	}
	if uerr := json.Unmarshal(out.Bytes(), &report); err != nil || uerr != nil || len(report.Strikes) != 1 {
		t.Fatalf("%v, %v: %s%s", err, uerr, out.String(), said.String())
	}
	s := report.Strikes[0]
	if !report.OK || s.Fault != api.FaultCut || s.Node != first.Node || !s.Recovered || s.Restarts != 1 || s.LostSteps < 5 ||
		!strings.Contains(s.Did, "no way from this node to 10.77.0.1:7602") || !strings.HasPrefix(s.Noticed, "node-") ||
		!strings.Contains(s.Outcome, "trains again after") {
		t.Errorf("the report: %+v", report)
	}
	events := string(w.troupe("job", "events", id))
	if !strings.Contains(events, "node "+first.Node+" was lost") {
		t.Errorf("the events of the job do not say why it was restarted:\n%s", events)
	}

	// The block goes by itself, the node comes back, and what ran there is not started again.
	w.until("the cut is over", func() (bool, string) { return !w.cutOff(first.Node), "" })
	w.waitNode(first.Node, "READY")
	if j := w.job(id); len(j.Attempts) != 2 || len(w.pids(first.Node, exe+" rank")) > 0 {
		t.Errorf("%+v", j)
	}
}
