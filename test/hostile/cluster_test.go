package hostile

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what should take a moment, on two busy cores.
const patience = 30 * time.Second

// goneLimit is P11's and P6's outside limit: what a job started is gone by then.
const goneLimit = 10 * time.Second

type options struct {
	split    bool // head and worker as processes of their own
	fallback bool // without control groups
	gpus     string
	orphan   time.Duration
	state    string // folder of the cluster; default a new one
}

// cluster is one real cluster under attack.
type cluster struct {
	t       *testing.T
	o       options
	dir     string // scratch
	state   string
	env     []string
	hostile string // this cluster's own link of the programs: names its processes
	addr    string
	bus     string
	daemons map[string]*daemon
}

// daemon is one long-lived process of the cluster.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it was reaped
}

func (d *daemon) alive() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

func (d *daemon) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-d.done:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("process %d did not end within %s; its log ends:\n%s", d.cmd.Process.Pid, limit, tail(d.log))
		return -1
	}
}

func start(t *testing.T, o options) *cluster {
	t.Helper()
	c := prepare(t, o)
	c.up()
	return c
}

// prepare makes a cluster's folders and starts nothing.
func prepare(t *testing.T, o options) *cluster {
	t.Helper()
	// Not t.TempDir: its name is long, and Unix sockets have short ones.
	dir, err := os.MkdirTemp("", "hostile-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, o: o, dir: dir, state: o.state, daemons: map[string]*daemon{}}
	if c.state == "" {
		c.state = filepath.Join(dir, "st")
	}
	c.hostile = filepath.Join(dir, "hostile")
	if err := copyProgram(hostileBin, c.hostile); err != nil {
		t.Fatal(err)
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "TROUPE_") {
			c.env = append(c.env, e)
		}
	}
	c.env = append(c.env, "XDG_CONFIG_HOME="+filepath.Join(dir, "config"))
	if o.fallback {
		c.env = append(c.env, "TROUPE_CONTAINMENT=fallback")
	}
	if o.gpus == "" {
		c.o.gpus = "none"
	}
	t.Cleanup(c.end)
	return c
}

// end stops everything, and says what the daemons said when the test failed.
func (c *cluster) end() {
	for _, d := range c.daemons {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
	}
	for name, d := range c.daemons {
		select {
		case <-d.done:
		case <-time.After(20 * time.Second):
			_ = d.cmd.Process.Kill()
			<-d.done
			c.t.Errorf("%s did not end within 20 s of SIGTERM", name)
		}
		if c.t.Failed() {
			c.t.Logf("log of %s ends:\n%s", name, tail(d.log))
		}
	}
	c.reap()
	if c.t.Failed() && os.Getenv("HOSTILE_KEEP") != "" {
		c.t.Logf("state kept in %s", c.dir)
		return
	}
	_ = os.RemoveAll(c.dir)
}

// reap kills what a failed test left, by the mark of this cluster only.
func (c *cluster) reap() {
	for _, p := range c.strays() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

// up starts the cluster, or starts it again.
func (c *cluster) up() {
	c.t.Helper()
	if c.o.split {
		c.startHead()
		c.startWorker()
		return
	}
	args := []string{"up", "--state", c.state, "--port", "0", "--gpus", c.o.gpus, "--name", "n1"}
	if c.o.orphan > 0 {
		args = append(args, "--orphan-time", c.o.orphan.String())
	}
	line := c.daemon("up", "cluster up at ", args...)
	c.addr = strings.Fields(line)[3]
}

func (c *cluster) startHead() {
	c.t.Helper()
	dir := filepath.Join(c.state, "head")
	if _, err := os.Stat(dir); err != nil {
		if r := c.troupe("head", "init", "--state", dir); r.code != 0 {
			c.t.Fatalf("head init: %s", r)
		}
		c.addr, c.bus = "127.0.0.1:0", "127.0.0.1:0"
	}
	args := []string{"head", "start", "--state", dir, "--api-address", c.addr, "--bus-address", c.bus}
	if c.o.orphan > 0 {
		args = append(args, "--orphan-time", c.o.orphan.String())
	}
	line := c.daemon("head", "head ready at ", args...)
	// A head that comes back must be found where it was.
	f := strings.Fields(line)
	c.addr, c.bus = trimURL(f[3]), trimURL(f[5])
}

func trimURL(s string) string {
	_, s, _ = strings.Cut(strings.TrimRight(s, ","), "://")
	return s
}

func (c *cluster) startWorker() {
	c.t.Helper()
	c.daemon("worker", "node ", "worker", "start", "--state", filepath.Join(c.state, "node"), "--head", "nats://"+c.bus,
		"--token-file", filepath.Join(c.state, "head", "node.token"), "--gpus", c.o.gpus, "--name", "n1")
	c.await("the node is ready", func() (string, bool) {
		r := c.troupe("node", "list", "-o", "json")
		return r.String(), r.code == 0 && strings.Contains(r.out, `"READY"`)
	})
}

// daemon starts a long-lived process and returns the line that says it is ready.
func (c *cluster) daemon(name, ready string, args ...string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	at, _ := log.Seek(0, 2)
	cmd := exec.Command(troupeBin, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env, "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	d := &daemon{cmd: cmd, log: path, done: make(chan struct{})}
	c.daemons[name] = d
	go func() {
		_ = cmd.Wait()
		close(d.done)
	}()
	var found string
	c.await(name+" is ready", func() (string, bool) {
		b, err := os.ReadFile(path)
		if err != nil || int64(len(b)) < at {
			return fmt.Sprint(err), false
		}
		sc := bufio.NewScanner(bytes.NewReader(b[at:]))
		for sc.Scan() {
			if strings.HasPrefix(sc.Text(), ready) {
				found = sc.Text()
				return "", true
			}
		}
		if !d.alive() {
			c.t.Fatalf("%s ended with exit code %d before it was ready:\n%s", name, cmd.ProcessState.ExitCode(), b[at:])
		}
		return string(b[at:]), false
	})
	return found
}

// kill sends SIGKILL to a daemon and waits until it is gone.
func (c *cluster) kill(name string) {
	c.t.Helper()
	d := c.daemons[name]
	_ = d.cmd.Process.Kill()
	<-d.done
}
