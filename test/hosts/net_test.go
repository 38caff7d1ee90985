package hosts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var troupeBin, pythonBin, helperPath, keyFolder string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "troupe-hosts-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	root, err := filepath.Abs("../..")
	if err != nil {
		return 1, err
	}
	from := os.Getenv("TROUPE_BIN")
	if from == "" {
		from = filepath.Join(root, "bin", "troupe")
	}
	// A copy, so that a build beside the tests changes nothing.
	b, err := os.ReadFile(from)
	if err != nil {
		return 1, fmt.Errorf("%w; run `make build` first", err)
	}
	troupeBin = filepath.Join(dir, "troupe")
	if err := os.WriteFile(troupeBin, b, 0o700); err != nil {
		return 1, err
	}
	if pythonBin = os.Getenv("TROUPE_PYTHON"); pythonBin == "" {
		pythonBin = "python3"
	}
	helperPath = filepath.Join(root, "sdk", "python")
	keyFolder = filepath.Join(dir, "config")
	return m.Run(), nil
}

// patience is 20 times and more what anything here takes on a quiet machine.
const patience = 3 * time.Minute

var networks atomic.Int64

// network is a bridge with hosts at 10.77.0.N.
type network struct {
	t     *testing.T
	name  string
	hosts []*host
}

// host is one host of it.
type host struct {
	net     *network
	n       int
	name    string // of the host
	ns      string
	state   string
	config  string // XDG_CONFIG_HOME, with the join key
	address string
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// newNetwork makes n hosts, or skips where the kernel or its user does not allow it.
func newNetwork(t *testing.T, n int) *network {
	t.Helper()
	w := &network{t: t, name: fmt.Sprintf("tr%d%c", os.Getpid()%100000, 'a'+rune(networks.Add(1)-1))}
	sw := w.name + "s"
	t.Cleanup(func() { w.remove(sw) })
	for _, args := range [][]string{
		{"netns", "add", sw},
		{"-n", sw, "link", "add", "br0", "type", "bridge"},
		{"-n", sw, "link", "set", "br0", "up"},
	} {
		if err := ip(args...); err != nil {
			t.Skipf("no network namespaces with bridges: %v", err)
		}
	}
	for i := 1; i <= n; i++ {
		h := &host{
			net: w, n: i, name: fmt.Sprintf("gpu-%d", i), ns: fmt.Sprintf("%s%d", w.name, i), state: t.TempDir(), config: keyFolder,
			address: fmt.Sprintf("10.77.0.%d", i),
		}
		for _, args := range [][]string{
			{"netns", "add", h.ns},
			{"-n", h.ns, "link", "set", "lo", "up"},
			{"link", "add", "eth0", "netns", h.ns, "type", "veth", "peer", "name", fmt.Sprintf("p%d", i), "netns", sw},
			{"-n", h.ns, "addr", "add", h.address + "/24", "dev", "eth0"},
			{"-n", h.ns, "link", "set", "eth0", "up"},
			{"-n", sw, "link", "set", fmt.Sprintf("p%d", i), "master", "br0"},
			{"-n", sw, "link", "set", fmt.Sprintf("p%d", i), "up"},
		} {
			if err := ip(args...); err != nil {
				t.Skipf("no network namespaces with veth pairs: %v", err)
			}
		}
		w.hosts = append(w.hosts, h)
	}
	key := exec.Command(troupeBin, "join-key", "new")
	key.Env = append(os.Environ(), "XDG_CONFIG_HOME="+keyFolder)
	if out, err := key.CombinedOutput(); err != nil && !strings.Contains(string(out), "already") {
		t.Fatalf("make a join key: %v: %s", err, out)
	}
	return w
}

func (w *network) remove(sw string) {
	for _, h := range w.hosts {
		h.kill()
		_ = ip("netns", "del", h.ns)
	}
	_ = ip("netns", "del", sw)
}

// pids are the processes on the host.
func (h *host) pids() []int {
	out, err := exec.Command("ip", "netns", "pids", h.ns).Output()
	if err != nil {
		return nil
	}
	var list []int
	for f := range strings.FieldsSeq(string(out)) {
		if pid, err := strconv.Atoi(f); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// kill ends everything on the host at once, as a power cut would.
func (h *host) kill() {
	for _, pid := range h.pids() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// process is a launch command on a host.
type process struct {
	t    *testing.T
	host *host
	args []string
	cmd  *exec.Cmd
	out  buffer
	done chan struct{}
}

// launch starts the command with torchrun's options there.
func (h *host) launch(env []string, args ...string) *process {
	h.net.t.Helper()
	full := append([]string{"netns", "exec", h.ns, "unshare", "--uts", "sh", "-c", "hostname " + h.name + "; exec \"$@\"", "sh", troupeBin, "launch", "--python", pythonBin}, args...)
	p := &process{t: h.net.t, host: h, args: args, cmd: exec.Command("ip", full...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+h.state, "XDG_CONFIG_HOME="+h.config, "PYTHONPATH="+helperPath, "MARK=of-"+h.name)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		h.net.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the code is read from ProcessState
		close(p.done)
	}()
	h.net.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, or the test has failed
		<-p.done
	})
	return p
}

// says waits for a text in the output.
func (p *process) says(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.t.Helper()
		end := time.Now().Add(patience)
		for !strings.Contains(p.out.String(), text) {
			select {
			case <-p.done:
				if !strings.Contains(p.out.String(), text) {
					p.t.Fatalf("%s ended with code %d and never said %q:\n%s", p.host.name, p.cmd.ProcessState.ExitCode(), text, p.out.String())
				}
			case <-time.After(20 * time.Millisecond):
			}
			if time.Now().After(end) {
				p.t.Fatalf("%s never said %q:\n%s", p.host.name, text, p.out.String())
			}
		}
	}
}

// ends waits for the end and compares its code.
func (p *process) ends(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s has not ended:\n%s", p.host.name, p.out.String())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ended with code %d, want %d:\n%s", p.host.name, got, code, p.out.String())
	}
}

// signal reaches the launcher itself, which every wrapper became by exec.
func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// lacks fails if a text was printed.
func (p *process) lacks(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		if strings.Contains(p.out.String(), text) {
			p.t.Errorf("%s says %q:\n%s", p.host.name, text, p.out.String())
		}
	}
}

// empty waits until nothing runs on the host.
func (h *host) empty() {
	h.net.t.Helper()
	for end := time.Now().Add(patience); len(h.pids()) > 0; {
		if time.Now().After(end) {
			h.net.t.Errorf("processes %v are left on %s", h.pids(), h.name)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// script writes a program for the ranks.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rank.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
