package hosts

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// who says where a rank stands, in one line, and goes on until it is ended.
const who = `echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on host $GROUP_RANK of $GROUP_WORLD_SIZE, attempt $TORCHELASTIC_RESTART_COUNT, master $MASTER_ADDR, run $TORCHELASTIC_RUN_ID, $MARK"
exec sleep 600
`

// An ordinary DDP script on two hosts with different numbers of ranks; the host of the
// endpoint comes last.
func TestTwoHostsTrain(t *testing.T) {
	if testing.Short() {
		return // it imports torch; the other tests run the same protocol without
	}
	t.Parallel()
	if out, err := exec.Command(pythonBin, "-c", "import torch").CombinedOutput(); err != nil {
		t.Fatalf("%s has no torch: %v: %s; use test/scripts/python-env.sh run", pythonBin, err, out)
	}
	w := newNetwork(t, 2)
	train, err := filepath.Abs("../../examples/hello-launch/train.py")
	if err != nil {
		t.Fatal(err)
	}
	options := []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1", "--rdzv-id=hello"}
	tail := []string{train, "--steps", "3"}
	b := w.hosts[1].launch(nil, append(append([]string{"--nproc-per-node=2"}, options...), tail...)...)
	b.says("waiting for the host of the endpoint at 10.77.0.1:29400")
	a := w.hosts[0].launch(nil, append(append([]string{}, options...), tail...)...)
	a.ends(0)
	b.ends(0)
	a.says("if it is lost, the run ends", "rank 0 of 3, local rank 0", "rank 0: step 3")
	a.lacks("rank 1: step", "rank 2: step")
	b.says("rank 1 of 3, local rank 0", "rank 2 of 3, local rank 1", "rank 1: step 3", "rank 2: step 3")
	b.lacks("rank 0: step")
	w.hosts[0].empty()
	w.hosts[1].empty()
}

// Hosts come and go within MIN:MAX; the budget of no restart is not touched. At the end
// the host that keeps the run is lost.
func TestHostsComeAndGo(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3)
	rank := script(t, who)
	options := func(more ...string) []string {
		return append(append([]string{"--nnodes=2:3", "--rdzv-endpoint=10.77.0.1:29411", "--rdzv-backend=c10d", "--rdzv-id=r1", "--no-python"}, more...), rank)
	}
	a := w.hosts[0].launch(nil, options()...)
	b := w.hosts[1].launch(nil, options()...)
	c := w.hosts[2].launch(nil, options("--nproc-per-node=2")...)
	a.says("rank 0 of 4, 0 of 1 on host 0 of 3, attempt 0, master 10.77.0.1, run r1, of-gpu-1")
	b.says("rank 1 of 4, 0 of 1 on host 1 of 3, attempt 0, master 10.77.0.1, run r1, of-gpu-2")
	c.says("rank 2 of 4, 0 of 2 on host 2 of 3, attempt 0", "rank 3 of 4, 1 of 2 on host 2 of 3, attempt 0, master 10.77.0.1, run r1, of-gpu-3")

	// Who may not come in hears why.
	stranger := *w.hosts[2]
	stranger.config = t.TempDir()
	make := exec.Command(troupeBin, "join-key", "new")
	make.Env = append(make.Environ(), "XDG_CONFIG_HOME="+stranger.config)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := stranger.launch(nil, options()...)
	s.ends(77)
	s.says("does not accept the join key of this host")
	d := w.hosts[2].launch(nil, options("--max-restarts=4")...)
	d.ends(64)
	d.says("--max-restarts: 0 at the endpoint, 4 on this host")
	d = w.hosts[2].launch(nil, "--nnodes=2:3", "--rdzv-endpoint=10.77.0.1:29411", "--rdzv-backend=c10d", "--rdzv-id=r2", "--no-python", rank)
	d.ends(73)
	d.says("this endpoint serves --rdzv-id=r1, not r2")

	w.hosts[1].kill()
	a.says("node gpu-2 was lost", "rank 0 of 3, 0 of 1 on host 0 of 2, attempt 1")
	c.says("rank 1 of 3, 0 of 2 on host 1 of 2, attempt 1", "rank 2 of 3, 1 of 2 on host 1 of 2, attempt 1")

	b = w.hosts[1].launch(nil, options()...)
	b.says("rank 3 of 4, 0 of 1 on host 2 of 3, attempt 2")
	a.says("rank 0 of 4, 0 of 1 on host 0 of 3, attempt 2")

	// One that is told to end leaves; the others go on.
	if err := c.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.ends(130)
	b.says("rank 1 of 2, 0 of 1 on host 1 of 2, attempt 3")
	w.hosts[2].empty()

	w.hosts[0].kill()
	b.ends(75)
	b.says("host 10.77.0.1, which keeps the run, is lost")
	w.hosts[1].empty()
}

// Explicit node ranks, a host that comes ten seconds before the endpoint's, one that is
// too many, and a script that fails: all hosts end with the run's code.
func TestStaticHosts(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3)
	gate := filepath.Join(t.TempDir(), "gate")
	rank := script(t, `echo "rank $RANK of $WORLD_SIZE on host $GROUP_RANK, $MARK"
while ! [ -e `+gate+` ]; do sleep 0.1; done
[ $RANK = 1 ] && exit 3
exec sleep 600
`)
	launch := func(h *host, more ...string) *process {
		return h.launch(nil, append(append([]string{"--nnodes=2", "--master-addr=10.77.0.3", "--master-port=29433", "--exit-code=job", "--no-python"}, more...), rank)...)
	}
	early := launch(w.hosts[0], "--node-rank=1")
	early.says("waiting for the host of the endpoint at 10.77.0.3:29433")
	select {
	case <-early.done:
		t.Fatalf("it did not wait:\n%s", early.out.String())
	case <-time.After(10 * time.Second):
	}
	first := launch(w.hosts[2], "--node-rank=0")
	first.says("rank 0 of 2 on host 0, of-gpu-3")
	early.says("rank 1 of 2 on host 1, of-gpu-1")
	twice := launch(w.hosts[1], "--node-rank=1")
	twice.ends(64)
	twice.says("--node-rank=1 is that of gpu-1")
	spare := w.hosts[1].launch(nil, "--nnodes=2", "--rdzv-conf=is_host=0", "--master-addr=10.77.0.3", "--master-port=29433", "--exit-code=job", "--no-python", rank)
	spare.says("gpu-2 waits, and takes over when one of them leaves")
	if err := exec.Command("touch", gate).Run(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{early, first, spare} {
		p.ends(3)
		p.says("FAILED", "exitcode  : 3")
	}
	for _, h := range w.hosts {
		h.empty()
	}
}

// A host advertises the address that leads to the others, whatever else it has, unless
// it is told another.
func TestSeveralInterfaces(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 2)
	b := w.hosts[1]
	for _, args := range [][]string{
		{"-n", b.ns, "link", "add", "aaa0", "type", "veth", "peer", "name", "aaa1"}, // leads nowhere, and sorts first
		{"-n", b.ns, "addr", "add", "10.9.0.1/24", "dev", "aaa0"},
		{"-n", b.ns, "link", "set", "aaa0", "up"},
		{"-n", b.ns, "addr", "add", "10.77.0.22/24", "dev", "eth0"},
	} {
		if err := ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	rank := script(t, `echo "rank $RANK: master $MASTER_ADDR over $GLOO_SOCKET_IFNAME"`+"\n")
	for local, want := range map[string]string{"": "10.77.0.2", "10.77.0.22": "10.77.0.22"} {
		options := []string{"--nnodes=2", "--rdzv-endpoint=10.77.0.1:29455", "--rdzv-backend=c10d", "--no-python"}
		a := w.hosts[0].launch(nil, append(append([]string{}, options...), "--node-rank=1", rank)...)
		if local != "" {
			options = append(options, "--local-addr="+local)
		}
		p := b.launch(nil, append(append([]string{}, options...), "--node-rank=0", rank)...)
		a.ends(0)
		p.ends(0)
		a.says("rank 1: master " + want + " over eth0")
		p.says("rank 0: master " + want + " over eth0")
	}
}
