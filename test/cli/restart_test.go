package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// apart is head and worker as separate processes on loopback.
type apart struct {
	*home
	apiAddr, busAddr string
	head, worker     *running
	den              *running // a second worker, if any
}

func newApart(t *testing.T) *apart {
	t.Helper()
	h := &apart{home: newHome(t), apiAddr: "127.0.0.1:0", busAddr: "127.0.0.1:0"}
	h.want(0, "head", "init", "--state", h.path("head"))
	h.startHead()
	h.startWorker()
	// Registered first ends last: jobs go before the processes that know of them.
	t.Cleanup(func() {
		for line := range strings.FieldsSeq(h.troupe("ps", "--all", "-o", "name").out) {
			h.troupe("stop", line, "--yes", "--grace", "1s")
		}
		for _, r := range []*running{h.worker, h.head} {
			_ = r.cmd.Process.Signal(syscall.SIGTERM) // may have ended
			r.wait()
		}
	})
	return h
}

func (h *apart) path(name string) string { return filepath.Join(h.dir, name) }

func (h *apart) startHead() {
	h.t.Helper()
	h.head = h.start("head", "start", "--state", h.path("head"), "--api-address", h.apiAddr, "--bus-address", h.busAddr)
	m := h.head.says(`head ready at http://(\S+), bus nats://(\S+)`)
	h.apiAddr, h.busAddr = m[1], m[2] // the same after a restart
}

func (h *apart) startWorker() {
	h.t.Helper()
	h.worker = h.start("worker", "start", "--state", h.path("node"), "--name", "box", "--cpus", "4",
		"--head", "nats://"+h.busAddr, "--token-file", h.path("head/node.token"), "--notice-file", h.path("notice-box"))
	h.worker.says(`^node n[0-9a-f]+, head nats://`)
}

func (h *apart) ready() {
	h.t.Helper()
	eventually(h.t, "the node is not ready", func() error {
		if r := h.troupe("node", "list"); !strings.Contains(r.out, "READY") {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
}

// pids are those of all ranks of a running job.
func pids(j api.Job) string {
	var out []string
	for _, r := range j.Attempts[len(j.Attempts)-1].Ranks {
		out = append(out, fmt.Sprint(r.PID))
	}
	return strings.Join(out, " ")
}

// The agent and the head may go and come back, gently or not, while ranks run on: no
// attempt is made, no process changes, no line is lost.
func TestRanksOutliveAgentAndHead(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	h.ready()
	h.want(0, "run", "--detach", "--name", "long", "--ranks", "2", "--", "sh", "-c",
		`i=0; while ! test -e go; do i=$((i+1)); echo $i; sleep 0.05; done; echo done`)
	var before api.Job
	eventually(t, "the job does not run", func() error {
		before = h.job("long-")
		if before.State != api.Running || strings.Contains(" "+pids(before)+" ", " 0 ") {
			return fmt.Errorf("%s, processes %s", before.State, pids(before))
		}
		return nil
	})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		h.worker.signal(sig)
		h.worker.wait()
		h.startWorker()
		h.ready()
		h.head.signal(sig)
		h.head.wait()
		h.startHead()
		h.ready()
		j := h.job("long-")
		if j.State != api.Running || j.Attempt != 0 || pids(j) != pids(before) {
			t.Fatalf("after signal %d to agent and head: %s, attempt %d, processes %s; were %s", sig, j.State, j.Attempt, pids(j), pids(before))
		}
	}
	// Both at once.
	h.worker.signal(syscall.SIGKILL)
	h.head.signal(syscall.SIGKILL)
	h.worker.wait()
	h.head.wait()
	h.startHead()
	h.startWorker()
	h.ready()
	h.write("go", "")
	r := h.want(0, "job", "logs", "-f", "long-", "--rank", "1", "--prefix", "none")
	if j := h.job("long-"); j.State != api.Succeeded || j.Attempt != 0 {
		t.Errorf("ended as %s in attempt %d", j.State, j.Attempt)
	}
	lines := strings.Fields(r.out)
	for i, l := range lines[:len(lines)-1] {
		if l != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q: lines are lost or repeated", i+1, l)
		}
	}
}

func TestHeadAndWorkerRefuseNonsense(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	state := filepath.Join(h.dir, "head")
	for _, c := range []struct {
		code  int
		words string
		args  []string
	}{
		{api.ExitNever, "head init", []string{"head", "start", "--state", state, "--api-address", "127.0.0.1:0", "--bus-address", "127.0.0.1:0"}},
		{0, "", []string{"head", "init", "--state", state}},
		{api.ExitConflict, "help: ", []string{"head", "init", "--state", state}},
		{api.ExitNever, "troupe join-key new", []string{"head", "start", "--state", state, "--api-address", "0.0.0.0:0"}},
		{api.ExitUsage, "both on loopback", []string{"head", "start", "--state", state, "--api-address", "0.0.0.0:0", "--bus-address", "127.0.0.1:0"}},
		{api.ExitUsage, "--head", []string{"worker", "start", "--state", state + "n", "--head", "nats://10.0.0.1:7602"}},
		{api.ExitUsage, "--head", []string{"worker", "start", "--state", state + "n", "--token-file", state + "/node.token", "--head", "ftp://x"}},
		{api.ExitNotFound, "nosuch", []string{"worker", "start", "--state", state + "n", "--token-file", state + "/nosuch"}},
		{api.ExitUsage, "--token-file", []string{"worker", "start", "--state", state + "n"}},
	} {
		if r := h.troupe(c.args...); r.code != c.code || !strings.Contains(r.errout, c.words) {
			t.Errorf("want exit %d and %q: %v", c.code, c.words, r)
		}
	}
	// A head that is not there yet is waited for: machines start in any order.
	w := h.start("worker", "start", "--state", state+"n", "--token-file", state+"/node.token", "--head", "nats://127.0.0.1:1")
	w.says("no head answers at nats://127.0.0.1:1 yet; trying on")
	w.says(`^node n`)
	w.signal(syscall.SIGTERM)
	if end := w.wait(); end.code != 0 {
		t.Errorf("%v", end)
	}
	gone(t, h.dir)
}

// A node with a wrong token is told so, and a second agent on one folder is refused.
func TestWorkerIdentity(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	h.ready()
	bad := h.write("bad.token", "wrong\n")
	if r := h.troupe("worker", "start", "--state", h.path("other"), "--token-file", bad, "--head", "nats://"+h.busAddr); r.code != api.ExitDenied {
		t.Errorf("want exit %d: %v", api.ExitDenied, r)
	}
	if r := h.troupe("worker", "start", "--state", h.path("node"), "--token-file", h.path("head/node.token"), "--head", "nats://"+h.busAddr); r.code != api.ExitConflict {
		t.Errorf("want exit %d: %v", api.ExitConflict, r)
	}
	if r := h.troupe("head", "start", "--state", h.path("head"), "--api-address", "127.0.0.1:0", "--bus-address", "127.0.0.1:0"); r.code != api.ExitConflict {
		t.Errorf("want exit %d: %v", api.ExitConflict, r)
	}
	if r := h.troupe("node", "list", "-o", "name"); r.out != "box\n" {
		t.Errorf("%v", r)
	}
}
