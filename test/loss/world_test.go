package loss

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// TestMain lets the test binary be a rank, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "rank" {
		if err := rank(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rank publishes a step every 100 ms, for ever.
func rank() error {
	c, err := (&netDialer{}).dial(os.Getenv("TROUPE_SOCKET"))
	if err != nil {
		return err
	}
	number, _ := strconv.ParseInt(os.Getenv("RANK"), 10, 64)
	gen, _ := strconv.ParseUint(os.Getenv("TROUPE_GENERATION"), 10, 64)
	hello := shim.RankRequest{Op: "hello", V: shim.ProtocolVersion, Rank: number, Generation: gen, PID: int64(os.Getpid())}
	if err := shim.WriteFrame(c, shim.MaxRankFrame, hello); err != nil {
		return err
	}
	var r shim.RankReply
	if err := shim.ReadFrame(c, shim.MaxRankFrame, &r); err != nil || !r.OK {
		return fmt.Errorf("hello: %+v %w", r, err)
	}
	p, err := page.Open(r.Page)
	if err != nil {
		return err
	}
	for step := int64(1); ; step++ {
		p.SetStep(step, page.Monotonic())
		time.Sleep(100 * time.Millisecond)
	}
}

// world is a head and some nodes, each in a network namespace of its own.
type world struct {
	t    *testing.T
	bin  string
	dir  string
	name string // prefix of the namespaces
	api  string
	env  []string
}

const hub = "h"

func (w *world) ns(node string) string { return w.name + node }

func (w *world) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

// worlds counts those that were made: several may be there at once.
var worlds atomic.Int32

// newWorld makes the network and starts a head, with more options of its own; it skips
// where namespaces cannot be made.
func newWorld(t *testing.T, head []string, nodes ...string) *world {
	t.Helper()
	bin, err := filepath.Abs("../../bin/troupe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	dir, err := os.MkdirTemp("", "loss") // short: sockets go below it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, bin: bin, dir: dir, name: fmt.Sprintf("tl%d%c", os.Getpid()%100000, 'a'+rune(worlds.Add(1)))}
	probe := w.ns("probe")
	if out, err := exec.Command("ip", "netns", "add", probe).CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		t.Skipf("network namespaces cannot be made: %s", bytes.TrimSpace(out))
	}
	_ = exec.Command("ip", "netns", "del", probe).Run()
	w.env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	t.Cleanup(func() { w.down(nodes) })
	w.ip("netns", "add", w.ns(hub))
	w.ip("-n", w.ns(hub), "link", "set", "lo", "up")
	w.ip("-n", w.ns(hub), "link", "add", "br0", "type", "bridge")
	w.ip("-n", w.ns(hub), "addr", "add", "10.77.0.1/24", "dev", "br0")
	w.ip("-n", w.ns(hub), "link", "set", "br0", "up")
	for i, n := range nodes {
		w.ip("netns", "add", w.ns(n))
		w.ip("-n", w.ns(n), "link", "set", "lo", "up")
		w.ip("-n", w.ns(hub), "link", "add", "v"+n, "type", "veth", "peer", "name", "eth0", "netns", w.ns(n))
		w.ip("-n", w.ns(hub), "link", "set", "v"+n, "master", "br0", "up")
		w.ip("-n", w.ns(n), "addr", "add", fmt.Sprintf("10.77.0.%d/24", 10+i), "dev", "eth0")
		w.ip("-n", w.ns(n), "link", "set", "eth0", "up")
	}
	w.troupe("join-key", "new")
	w.troupe("head", "init", "--state", filepath.Join(dir, "h"))
	w.start(hub, append([]string{"head", "start", "--state", filepath.Join(dir, "h"), "--api-address", "10.77.0.1:7600", "--bus-address", "10.77.0.1:7602"}, head...)...)
	w.api = "10.77.0.1:7600"
	for _, n := range nodes {
		w.startWorker(n)
	}
	for _, n := range nodes {
		w.waitNode(n, "READY")
	}
	return w
}

func (w *world) down(nodes []string) {
	for _, n := range append([]string{hub}, nodes...) {
		w.killAll(n)
	}
	if w.t.Failed() {
		for _, n := range append([]string{hub}, nodes...) {
			b, _ := os.ReadFile(filepath.Join(w.dir, n+".log"))
			w.t.Logf("log of %s ends:\n%s", n, b[max(0, len(b)-3000):])
		}
	}
	for _, n := range append([]string{hub}, nodes...) {
		_ = exec.Command("ip", "netns", "del", w.ns(n)).Run()
	}
	os.RemoveAll(w.dir)
}

// start starts a daemon on a node; it is reaped, and ended with its namespace.
func (w *world) start(node string, args ...string) {
	w.t.Helper()
	log, err := os.OpenFile(filepath.Join(w.dir, node+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("ip", append([]string{"netns", "exec", w.ns(node), w.bin}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, w.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
}

func (w *world) startWorker(node string) {
	w.t.Helper()
	w.start(node, "worker", "start", "--head", w.api, "--name", node, "--cpus", "2", "--state", filepath.Join(w.dir, node))
}

// command is one that runs where the head is.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", w.ns(hub), w.bin}, args...)...)
	cmd.Env, cmd.Dir = w.env, w.dir
	return cmd
}

// troupe runs a command where the head is.
func (w *world) troupe(args ...string) []byte {
	w.t.Helper()
	cmd := w.command(args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("troupe %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return out
}

// pids lists the processes on a node; with match, those whose command line holds it.
func (w *world) pids(node, match string) []int {
	out, err := exec.Command("ip", "netns", "pids", w.ns(node)).Output()
	if err != nil {
		return nil
	}
	var list []int
	for f := range strings.FieldsSeq(string(out)) {
		pid, _ := strconv.Atoi(f)
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if pid > 1 && strings.Contains(strings.ReplaceAll(string(cmd), "\x00", " "), match) {
			list = append(list, pid)
		}
	}
	return list
}

// killAll is SIGKILL of every process on a node.
func (w *world) killAll(node string) {
	for len(w.pids(node, "")) > 0 {
		for _, pid := range w.pids(node, "") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// patience is 20 times the longest figure here.
const patience = 20 * 6 * time.Second

// until waits for a condition and says how long it took; it gives up with the last state.
func (w *world) until(what string, cond func() (bool, string)) time.Duration {
	w.t.Helper()
	start := time.Now()
	for {
		ok, last := cond()
		if ok {
			return time.Since(start)
		}
		if time.Since(start) > patience {
			w.t.Fatalf("%s: not within %s; last: %s", what, patience, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type nodeView struct{ Name, State, Why string }

func (w *world) waitNode(name string, states ...string) time.Duration {
	w.t.Helper()
	return w.until(fmt.Sprintf("node %s is %v", name, states), func() (bool, string) {
		n := w.node(name)
		return slices.Contains(states, n.State), fmt.Sprintf("%+v", n)
	})
}

func (w *world) node(name string) nodeView {
	w.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", w.ns(hub), w.bin, "node", "list", "-o", "json")
	cmd.Env = w.env
	out, err := cmd.Output()
	if err != nil {
		return nodeView{State: "unknown"} // the head may be starting
	}
	var list struct{ Items []nodeView }
	if err := json.Unmarshal(out, &list); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	for _, n := range list.Items {
		if n.Name == name {
			return n
		}
	}
	return nodeView{State: "none"}
}

type jobView struct {
	ID       string
	State    string
	Attempts []struct {
		Number int64
		Ranks  []struct {
			Rank int64
			Node string
			PID  int64
			Step int64
		}
	}
}

func (w *world) job(id string) jobView {
	w.t.Helper()
	var j jobView
	out := w.troupe("job", "get", id, "-o", "json")
	if err := json.Unmarshal(out, &j); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return j
}

// submit submits ranks, each on a node of its own, and waits until they run.
func (w *world) submit(name string, ranks int, command ...string) string {
	w.t.Helper()
	spec, err := json.Marshal(map[string]any{"name": name, "ranks": ranks, "strategy": "STRICT_SPREAD", "command": command})
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.dir, name+".yaml")
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		w.t.Fatal(err)
	}
	var j jobView
	if err := json.Unmarshal(w.troupe("submit", file, "-o", "json"), &j); err != nil {
		w.t.Fatal(err)
	}
	w.waitAttempt(j.ID, 0)
	return j.ID
}

func (w *world) waitAttempt(id string, number int64) time.Duration {
	w.t.Helper()
	return w.until(fmt.Sprintf("attempt %d of %s runs", number, id), func() (bool, string) {
		j := w.job(id)
		n := len(j.Attempts)
		return j.State == "RUNNING" && n > 0 && j.Attempts[n-1].Number == number, fmt.Sprintf("%+v", j)
	})
}
