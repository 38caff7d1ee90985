package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

var update = flag.Bool("update", false, "write the golden files")

// troupeBin is the troupe under test: TROUPE_BIN, as make sets it, else built here.
var troupeBin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	// What the tests start begins with the default for a hang-up, also under nohup.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	troupeBin = os.Getenv("TROUPE_BIN")
	if troupeBin == "" {
		dir, err := os.MkdirTemp("", "troupe-cli-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		troupeBin = filepath.Join(dir, "troupe")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", troupeBin, "../../cmd/troupe")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build troupe: %v\n%s", err, out)
			return 1
		}
	}
	// Nothing of whoever runs the tests may reach the commands.
	for _, kv := range os.Environ() {
		if k, _, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "TROUPE_") && k != "TROUPE_PYTHON" || strings.HasPrefix(k, "XDG_") || strings.HasPrefix(k, "PET_") {
			_ = os.Unsetenv(k)
		}
	}
	return m.Run()
}

// patience bounds every wait: far more than anything takes, so that only what never
// comes fails.
const patience = 90 * time.Second

// home is a user: folders of their own, and commands run as them.
type home struct {
	t   *testing.T
	dir string
	env []string
}

func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{t: t, dir: t.TempDir()}
	h.env = append(os.Environ(), userEnv(h.dir)...)
	// Cleanups run last in, first out: this one sees what commands left.
	t.Cleanup(func() { endAll(t, h.dir) })
	return h
}

// userEnv is the environment of a user whose everything lies below dir.
func userEnv(dir string) []string {
	return []string{
		"HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"PATH=" + filepath.Dir(troupeBin) + string(os.PathListSeparator) + os.Getenv("PATH"),
	}
}

// result is how a command ended.
type result struct {
	args        []string
	out, errout string
	code        int
}

func (r result) String() string {
	return fmt.Sprintf("troupe %s: exit %d\nstdout:\n%s\nstderr:\n%s", strings.Join(r.args, " "), r.code, r.out, r.errout)
}

// command makes a command of the user; it starts in the home folder.
func (h *home) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = h.dir, h.env
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// troupe runs one command to its end.
func (h *home) troupe(args ...string) result { return h.program(troupeBin, args...) }

func (h *home) program(name string, args ...string) result {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := h.command(ctx, name, args...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	err := cmd.Run()
	r := result{args: args, out: out.String(), errout: errout.String(), code: cmd.ProcessState.ExitCode()}
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) || ctx.Err() != nil {
		h.t.Fatalf("%v: %v (%v)", r, err, ctx.Err())
	}
	return r
}

// want runs one command and fails the test on another exit code.
func (h *home) want(code int, args ...string) result {
	h.t.Helper()
	r := h.troupe(args...)
	if r.code != code {
		h.t.Fatalf("want exit %d of %v", code, r)
	}
	return r
}

// up starts a cluster of the user that goes down with the test.
func (h *home) up(flags ...string) {
	h.t.Helper()
	h.want(0, append([]string{"up", "-d", "--port", "0"}, flags...)...)
	h.t.Cleanup(func() { h.troupe("down", "--yes") })
}

// write makes a file in the home folder and returns its path.
func (h *home) write(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// eventually waits for a condition of the outside world and reports its last state.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// proc is a process that has to do with a folder.
type proc struct {
	pid int
	cmd string
}

// processes finds what works below dir, was started from there or knows of it: ranks by
// their working directory and environment, shims and heads by their command line.
// Zombies are dead.
func processes(dir string) []proc {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		base := filepath.Join("/proc", e.Name())
		cmd, err := os.ReadFile(filepath.Join(base, "cmdline"))
		if err != nil || len(cmd) == 0 {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(base, "environ"))
		cwd, _ := os.Readlink(filepath.Join(base, "cwd"))
		if bytes.Contains(cmd, []byte(dir)) || bytes.Contains(env, []byte(dir)) || strings.HasPrefix(cwd, dir) {
			found = append(found, proc{pid, strings.ReplaceAll(string(cmd), "\x00", " ")})
		}
	}
	return found
}

// gone waits until nothing has to do with dir any more.
func gone(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "processes are left", func() error {
		if left := processes(dir); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// downAll takes every cluster below dir down; a test that failed may have left one.
func downAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "up.json" {
			cmd := exec.Command(troupeBin, "down", "--yes", "--state", filepath.Dir(path))
			cmd.Env = append(os.Environ(), userEnv(dir)...)
			_ = cmd.Run()
		}
		return nil
	})
}

// endAll ends what a test left below its own folder, and says so.
func endAll(t *testing.T, dir string) {
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		if len(processes(dir)) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, p := range processes(dir) {
		t.Errorf("left behind: process %d: %s", p.pid, p.cmd)
		if x, err := os.FindProcess(p.pid); err == nil {
			_ = x.Kill()
		}
	}
}

// buffer is output that a test reads while it grows.
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

// running is a command that has not ended yet.
type running struct {
	h           *home
	cmd         *exec.Cmd
	args        []string
	out, errout buffer
	done        chan struct{}
}

// start starts a troupe command in the background; it ends with the test.
func (h *home) start(args ...string) *running { return h.startProgram(troupeBin, args...) }

func (h *home) startProgram(name string, args ...string) *running {
	h.t.Helper()
	r := &running{h: h, args: args, done: make(chan struct{})}
	r.cmd = h.command(context.Background(), name, args...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errout
	if err := r.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // the code is read from ProcessState
		close(r.done)
	}()
	h.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // already ended: nothing to do
		<-r.done
	})
	return r
}

func (r *running) result() result {
	return result{args: r.args, out: r.out.String(), errout: r.errout.String(), code: r.cmd.ProcessState.ExitCode()}
}

// wait returns how the command ended.
func (r *running) wait() result {
	r.h.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.h.t.Fatalf("troupe %v has not ended\nstdout:\n%s\nstderr:\n%s", r.args, r.out.String(), r.errout.String())
	}
	return r.result()
}

// says waits until the command's output, either stream, matches.
func (r *running) says(pattern string) []string {
	r.h.t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	var found []string
	eventually(r.h.t, "troupe "+strings.Join(r.args, " ")+" never said "+pattern, func() error {
		for _, b := range []*buffer{&r.out, &r.errout} {
			if found = re.FindStringSubmatch(b.String()); found != nil {
				return nil
			}
		}
		select {
		case <-r.done:
			return fmt.Errorf("it ended: %v", r.result())
		default:
			return fmt.Errorf("so far:\n%s\n%s", r.out.String(), r.errout.String())
		}
	})
	return found
}

func (r *running) signal(s syscall.Signal) {
	r.h.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.h.t.Fatal(err)
	}
}

// client is an SDK client of the user's current cluster.
func (h *home) client() *troupe.Client {
	h.t.Helper()
	var contexts api.List[struct{ Name, Address, TokenFile string }]
	if err := one(h.want(0, "context", "list", "-o", "json").out, &contexts); err != nil || len(contexts.Items) == 0 {
		h.t.Fatalf("contexts: %v %+v", err, contexts)
	}
	x := contexts.Items[len(contexts.Items)-1]
	token, err := os.ReadFile(x.TokenFile)
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := troupe.New(x.Address, strings.TrimSpace(string(token)))
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// job asks for one job.
func (h *home) job(id string) api.Job {
	h.t.Helper()
	j, err := h.client().Job(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return j
}

// python is the interpreter of the tests; it needs nothing but its own library, unless
// a test says so.
func (h *home) python() string {
	h.t.Helper()
	path := os.Getenv("TROUPE_PYTHON")
	if path == "" {
		var err error
		if path, err = exec.LookPath("python3"); err != nil {
			h.t.Fatal(err)
		}
	}
	sdk, err := filepath.Abs("../../sdk/python")
	if err != nil {
		h.t.Fatal(err)
	}
	h.env = append(h.env, "PYTHONPATH="+sdk, "TROUPE_BIN="+troupeBin)
	return path
}
