package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// stubborn is a rank that says when it is there and what it is sent, and goes on.
const stubborn = `trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.1; done`

// polite ends with its own code on TERM.
const polite = `trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done`

func TestInterruptOnceStopsGracefully(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.start("run", "--ranks", "2", "--", "sh", "-c", polite)
	r.says(`^\[0\] ready`)
	r.says(`^\[1\] ready`)
	r.signal(syscall.SIGINT)
	end := r.wait()
	if end.code != api.ExitInterrupted || strings.Count(end.out, "bye") != 2 {
		t.Errorf("want both ranks to end by themselves and exit 130: %v", end)
	}
	for _, want := range []string{"Ctrl-C stops it", "or with Ctrl-C again", ": stopped"} {
		if !strings.Contains(end.errout, want) {
			t.Errorf("%q is missing: %v", want, end)
		}
	}
	if j := h.job("sh-"); j.State != api.Stopped {
		t.Errorf("the job is %s", j.State)
	}
}

func TestInterruptTwiceKills(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.start("run", "--shutdown-timeout", "10m", "--", "sh", "-c", stubborn)
	r.says(`^ready`)
	r.signal(syscall.SIGINT)
	r.says(`got TERM`)
	r.signal(syscall.SIGTERM)
	if end := r.wait(); end.code != api.ExitInterrupted || !strings.Contains(end.errout, "by force") {
		t.Errorf("%v", end)
	}
	if j := h.job("sh-"); j.State != api.Stopped {
		t.Errorf("the job is %s", j.State)
	}
}

func TestTimeoutStopsTheJob(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	if r := h.want(api.ExitTimeout, "run", "--timeout", "500ms", "--", "sleep", "1000"); !strings.Contains(r.errout, "--timeout of 500ms is over") {
		t.Errorf("%v", r)
	}
	if j := h.job("sleep-"); j.State != api.Stopped {
		t.Errorf("the job is %s", j.State)
	}
}

// The owner's death is seen by the shim itself; its ranks end, and the job says why.
func TestOwnersDeathEndsTheJob(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.start("run", "--", "sh", "-c", stubborn)
	r.says(`^ready`)
	r.signal(syscall.SIGKILL)
	r.wait()
	end := h.want(1, "job", "wait", "@last", "-o", "json")
	var j api.Job
	if err := one(end.out, &j); err != nil {
		t.Fatal(err)
	}
	if j.State != api.Stopped || j.Reason == nil || j.Reason.Code != api.ReasonOwnerGone {
		t.Errorf("the job is %s, %+v; want STOPPED for OwnerGone", j.State, j.Reason)
	}
	if out := h.want(0, "job", "events", "@last").out; !strings.Contains(out, "owner-gone") {
		t.Errorf("no event says so:\n%s", out)
	}
}

// Ctrl-\ leaves the job running: whoever started it may end.
func TestQuitDetaches(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.start("run", "--max-restarts", "0", "--", "sh", "-c", `echo ready; while ! test -e go; do sleep 0.1; done; echo done; exit 6`)
	r.says(`^ready`)
	r.signal(syscall.SIGQUIT)
	end := r.wait()
	if end.code != 0 || !strings.Contains(end.errout, "detached; the job goes on") {
		t.Fatalf("%v", end)
	}
	// Longer than the grace after an owner's death: the shim would have ended it.
	eventually(t, "the shim never noticed", func() error {
		if j := h.job("sh-"); j.State != api.Running {
			return fmt.Errorf("the job is %s", j.State)
		}
		return nil
	})
	follow := h.start("job", "logs", "-f", "@last")
	follow.says(`^\[0\] ready`)
	h.want(0, "run", "--", "sleep", "2.5") // the grace passes
	if j := h.job("sh-"); j.State != api.Running {
		t.Fatalf("after the grace the job is %s, %+v", j.State, j.Reason)
	}
	h.write("go", "")
	if end := follow.wait(); end.code != 6 || !strings.Contains(end.out, "[0] done\n") {
		t.Errorf("%v", end)
	}
}

// A viewer that is interrupted leaves the job alone.
func TestViewersDetach(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.write("job.yaml", "name: j\ncommand: [sh, -c, 'echo ready; sleep 1000']\n")
	wait := h.start("submit", "job.yaml", "--wait")
	wait.says(`^job j-`)
	follow := h.start("job", "logs", "-f", "j-")
	follow.says(`^\[0\] ready`)
	for _, r := range []*running{follow, wait} {
		r.signal(syscall.SIGINT)
		if end := r.wait(); end.code != api.ExitInterrupted || !strings.Contains(end.errout, "the job goes on. Stop it with: troupe job stop j-") {
			t.Errorf("%v", end)
		}
	}
	if j := h.job("j-"); j.State != api.Running {
		t.Errorf("the job is %s", j.State)
	}
}

// The last lines arrive before the exit, however many there are.
func TestFollowToTheLastLine(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.want(0, "run", "--detach", "--name", "talker", "--max-restarts", "0", "--", "sh", "-c", "seq 1 100000; exit 9")
	r := h.start("job", "logs", "-f", "talker-", "--prefix", "none")
	end := r.wait()
	lines := strings.Split(strings.TrimSpace(end.out), "\n")
	if end.code != 9 || len(lines) != 100000 || lines[99999] != "100000" {
		t.Errorf("exit %d, %d lines, last %q\n%s", end.code, len(lines), lines[len(lines)-1], end.errout)
	}
	again := h.want(9, "job", "logs", "-f", "talker-", "--prefix", "none")
	if again.out != end.out {
		t.Error("following an ended job prints something else")
	}
	if one := h.want(0, "job", "logs", "talker-", "--prefix", "none"); one.out != end.out {
		t.Error("printing an ended job prints something else")
	}
}

// Nothing of the environment leaks into ranks, and what was asked for arrives.
func TestEnvironmentOfRun(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.env = append(h.env, "SECRET=s3cr3t", "WANTED=w", "NCCL_DEBUG=INFO", "TROUPE_TOKEN="+h.token())
	r := h.want(0, "run", "--env", "WANTED", "--env", "GIVEN=a b=c", "--", "env")
	for _, want := range []string{"\nWANTED=w\n", "\nGIVEN=a b=c\n", "\nRANK=0\n", "\nTROUPE_JOB=env-"} {
		if !strings.Contains("\n"+r.out, want) {
			t.Errorf("%q is missing in\n%s", want, r.out)
		}
	}
	for _, not := range []string{"SECRET", "TROUPE_TOKEN", "NCCL_DEBUG"} {
		if strings.Contains(r.out, not) {
			t.Errorf("%s reached the rank", not)
		}
	}
	if !strings.Contains(r.errout, "not sent to the ranks: NCCL_DEBUG") {
		t.Errorf("nobody was told: %s", r.errout)
	}
	r = h.want(0, "run", "--env-all", "--", "env")
	if !strings.Contains(r.out, "SECRET=s3cr3t") || strings.Contains(r.out, "TROUPE_TOKEN") {
		t.Errorf("--env-all sent\n%s", r.out)
	}
}

// token is the admin token of the user's cluster.
func (h *home) token() string {
	h.t.Helper()
	var contexts api.List[struct{ TokenFile string }]
	if err := one(h.want(0, "context", "list", "-o", "json").out, &contexts); err != nil {
		h.t.Fatal(err)
	}
	b, err := os.ReadFile(contexts.Items[0].TokenFile)
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
