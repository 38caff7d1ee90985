package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// launcher is a user who types python -m troupe.launch; no cluster runs.
type launcher struct {
	*home
	python string
}

func newLauncher(t *testing.T) *launcher {
	t.Helper()
	h := newHome(t)
	return &launcher{h, h.python()}
}

func (l *launcher) launch(args ...string) result {
	l.t.Helper()
	return l.program(l.python, append([]string{"-m", "troupe.launch"}, args...)...)
}

func (l *launcher) start(args ...string) *running {
	l.t.Helper()
	return l.startProgram(l.python, append([]string{"-m", "troupe.launch"}, args...)...)
}

// left fails the test when a launch that has returned left a process behind: it says
// that it is done only when everything is.
func (l *launcher) left(r result) {
	l.t.Helper()
	if left := processes(l.dir); len(left) > 0 {
		l.t.Errorf("after %v\nthese are left: %v", r, left)
	}
}

func TestLaunchSucceeds(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.env = append(l.env, "MY_SECRET=s3cr3t-of-mine", "TROUPE_TOKEN=not-for-ranks")
	script := l.write("hello.py", `import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], os.environ["MY_SECRET"][:3], "TROUPE_TOKEN" in os.environ)
print("to stderr", file=sys.stderr)
`)
	r := l.launch("--nproc-per-node=4", script, "--lr", "0.1", "-r")
	l.left(r)
	if r.code != 0 || strings.Count(r.out, "of 4 ['--lr', '0.1', '-r'] s3c False\n") != 4 || r.errout != strings.Repeat("to stderr\n", 4) {
		t.Errorf("%v", r)
	}
	// What the ranks got from the launcher's environment is nowhere on disk.
	err := filepath.WalkDir(l.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || path == script {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("s3cr3t-of-mine")) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// N restarts mean N+1 attempts, also when they fail alike; the code is torchrun's 1
// unless the job's own is asked for.
func TestLaunchBudgetIsExact(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("fail.py", `import os, time
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
if os.environ["RANK"] == "1":
    os._exit(7)
time.sleep(1000)
`)
	for _, n := range []int{0, 2} {
		r := l.launch("--nproc-per-node=2", fmt.Sprintf("--max-restarts=%d", n), script)
		l.left(r)
		if r.code != 1 || strings.Count(r.out, fmt.Sprintf("attempt %d of %d", n, n)) == 0 || strings.Contains(r.out, fmt.Sprintf("attempt %d", n+1)) {
			t.Errorf("--max-restarts=%d: %v", n, r)
		}
		for _, want := range []string{
			"fail.py FAILED", "Failures:", "Root Cause (first observed failure):", "  time      : ", "  host      : ",
			"  rank      : 1 (local_rank: 1)", "  exitcode  : 7", "  error_file: ", "  traceback : ",
		} {
			if !strings.Contains(r.errout, want) {
				t.Errorf("the summary lacks %q: %v", want, r)
			}
		}
	}
	r := l.launch("--nproc-per-node=2", "--exit-code=job", script)
	if r.code != 7 {
		t.Errorf("--exit-code=job: %v", r)
	}
}

// A rank killed from outside counts like any other failure, and the next attempt runs.
func TestLaunchSurvivesAKilledRank(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("killed.py", `import os, signal
if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
print("done", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["MASTER_PORT"])
`)
	r := l.launch("--nproc-per-node=2", "--max-restarts=1", script)
	l.left(r)
	if r.code != 0 || strings.Count(r.out, "done 1 ") != 2 {
		t.Errorf("%v", r)
	}
	if r = l.launch("--nproc-per-node=2", script); r.code != 1 || !strings.Contains(r.errout, "exitcode  : -9 (pid: ") {
		t.Errorf("%v", r)
	}
}

// --redirects and --tee write torchrun's tree of files, with torchrun's prefixes.
func TestLaunchLogFolder(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("talk.py", `import os, sys
print("out", os.environ["RANK"]); print("err", os.environ["RANK"], file=sys.stderr)
`)
	r := l.launch("--nproc-per-node=2", "-r", "1", "-t", "0:2", "--log-dir", "logs", "--role", "trainer", script)
	if r.code != 0 || r.out != "" || !strings.Contains(r.errout, "[trainer0]:err 0\n") || !strings.Contains(r.errout, "\nerr 1\n") && !strings.HasPrefix(r.errout, "err 1\n") {
		t.Errorf("%v", r)
	}
	var files []string
	err := filepath.WalkDir(filepath.Join(l.dir, "logs"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			parts := strings.Split(path, string(filepath.Separator))
			files = append(files, strings.Join(parts[len(parts)-3:], "/")+": "+strings.TrimSpace(string(b)))
		}
		return err
	})
	sort.Strings(files)
	want := []string{"attempt_0/0/stderr.log: err 0", "attempt_0/0/stdout.log: out 0", "attempt_0/1/stdout.log: out 1"}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("%v %v, want %v", files, err, want)
	}
	r = l.launch("--nproc-per-node=3", "--local-ranks-filter=1", script)
	if r.out != "out 1\n" || r.errout != "err 1\n" {
		t.Errorf("%v", r)
	}
	r = l.launch("--nproc-per-node=2", "-t", "3", "--log-dir=/dev/null", script)
	if r.code != 0 || !strings.Contains(r.out, "[default1]:out 1\n") {
		t.Errorf("%v", r)
	}
	if r = l.launch("--log-dir", script, script); r.code != 64 {
		t.Errorf("a file as log folder: %v", r)
	}
}

const waits = `import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("ready", os.getpid(), flush=True)
time.sleep(1000)
`

// However the launcher ends, its ranks end too.
func TestLaunchLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		l := newLauncher(t)
		r := l.start("--nproc-per-node=2", l.write("waits.py", waits))
		r.says(`^ready \d+\nready`)
		r.signal(sig)
		end := r.wait()
		l.left(end)
		if end.code != api.ExitInterrupted || strings.Count(end.out, "bye") != 2 {
			t.Errorf("after %v: %v", sig, end)
		}
	}
	l := newLauncher(t)
	r := l.start("--nproc-per-node=2", l.write("waits.py", waits))
	r.says(`^ready \d+\nready`)
	r.signal(syscall.SIGKILL)
	r.wait()
	gone(t, l.dir)
	// Its folder can be used at once.
	ok := l.launch(l.write("fine.py", "print('fine')"))
	if ok.code != 0 {
		t.Errorf("%v", ok)
	}
	again := l.start(l.write("waits.py", waits))
	again.says(`^ready`)
	// Meanwhile the same script is refused, and another is not.
	second := l.launch(filepath.Join(l.dir, "waits.py"))
	if second.code != api.ExitConflict || !strings.Contains(second.errout, "is being launched already") || !strings.Contains(second.errout, "--rdzv-id") {
		t.Errorf("%v", second)
	}
	if other := l.launch("--rdzv-id=other", filepath.Join(l.dir, "fine.py")); other.code != 0 {
		t.Errorf("%v", other)
	}
	again.signal(syscall.SIGINT)
	again.wait()
}

// A second launch of the same script goes on where the first has committed.
func TestLaunchResumes(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.env = append(l.env, "EVERY=5")
	script, err := filepath.Abs("testdata/saver.py")
	if err != nil {
		t.Fatal(err)
	}
	if r := l.launch("--nproc-per-node=2", script, "12"); r.code != 0 || strings.Count(r.out, "begins after step 0\n") != 2 {
		t.Fatalf("%v", r)
	}
	r := l.launch("--nproc-per-node=2", script, "20")
	if r.code != 0 || strings.Count(r.out, "begins after step 10\n") != 2 {
		t.Errorf("%v", r)
	}
	if r = l.launch("--nproc-per-node=2", "--rdzv-id=fresh", script, "3"); strings.Count(r.out, "begins after step 0\n") != 2 {
		t.Errorf("another run: %v", r)
	}
	l.left(r)
}

// The launcher refuses what it cannot start before anything is started.
func TestLaunchBadInput(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("x.py", "")
	for _, c := range []struct {
		code  int
		words string
		args  []string
	}{
		{66, "nosuch.py", []string{"nosuch.py"}},
		{64, "--nproc-per-node", []string{"--nproc-per-node=0", script}},
		{64, "--max-restarts", []string{"--max-restarts=-1", script}},
		{78, "troupe join-key new", []string{"--nnodes=2", script}},
		{64, "--rdzv-endpoint", []string{"--nnodes=2", "--rdzv-backend=c10d", script}},
		{64, "--rdzv-endpoint", []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:b:c", script}},
		{64, "--node-rank", []string{"--nnodes=2", "--node-rank=2", script}},
		{64, "--node-rank", []string{"--node-rank=1", script}},
		{64, "join_timeout", []string{"--nnodes=2", "--rdzv-conf=join_timeout=soon", script}},
		{78, "--rdzv-backend", []string{"--nnodes=2", "--rdzv-backend=etcd", script}},
		{64, "", []string{}},
		{1, "SyntaxError", []string{l.write("broken.py", "def")}},
	} {
		if r := l.launch(c.args...); r.code != c.code || !strings.Contains(r.errout, c.words) {
			t.Errorf("want exit %d and %q: %v", c.code, c.words, r)
		}
	}
	l.left(result{})
}

// torch says whether the tests' Python has torch, which only the two tests below need.
func (l *launcher) torch() bool {
	return exec.Command(l.python, "-c", "import torch").Run() == nil
}

var keyLine = regexp.MustCompile(`(?m)^([A-Z_][A-Z0-9_]*)=(.*)$`)

// ranksEnv is the environment of rank 1 of 2 as a launcher makes it.
func ranksEnv(t *testing.T, r result) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, m := range keyLine.FindAllStringSubmatch(r.out, -1) {
		env[m[1]] = m[2]
	}
	if r.code != 0 || env["RANK"] != "1" {
		t.Fatalf("%v", r)
	}
	return env
}

// Ranks find every variable that the real torchrun sets, with the values that do not
// depend on who sets them.
func TestEnvironmentIsTorchruns(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	if testing.Short() || !l.torch() {
		t.Log("needs torch; the short run does without")
		return
	}
	script := l.write("env.py", "import os\nif os.environ['RANK'] == '1':\n    [print(f'{k}={v}') for k, v in os.environ.items() if '\\n' not in v]\n")
	args := []string{"--nproc-per-node=2", "--max-restarts=3", "--role=trainer", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=my-id", script}
	theirs := ranksEnv(t, l.program(l.python, append([]string{"-m", "torch.distributed.run"}, args...)...))
	ours := ranksEnv(t, l.launch(args...))
	for k, v := range theirs {
		got, ok := ours[k]
		if !ok {
			t.Errorf("torchrun sets %s=%s, we do not", k, v)
			continue
		}
		switch k {
		case "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE", "PWD", "_":
			continue // places, which differ
		}
		if got != v {
			t.Errorf("torchrun sets %s=%s, we %s", k, v, got)
		}
	}
	for k := range ours {
		if _, theirsToo := theirs[k]; !theirsToo && !strings.HasPrefix(k, "TROUPE_") {
			t.Logf("we set %s=%s besides", k, ours[k])
		}
	}
}

// A script that was written for torchrun runs unchanged.
func TestUnchangedTorchrunScript(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	if testing.Short() || !l.torch() {
		t.Log("needs torch; the short run does without")
		return
	}
	script, err := filepath.Abs("../../examples/hello-launch/train.py")
	if err != nil {
		t.Fatal(err)
	}
	r := l.launch("--nproc-per-node=4", "--max-restarts=3", script, "--steps", "3")
	l.left(r)
	// torch itself aborts at exit now and then; then there is another attempt.
	if n := strings.Count(r.out, "step 3 loss"); r.code != 0 || n < 4 || strings.Count(r.out, "of 4, local rank") < 4 {
		t.Errorf("%v", r)
	}
}

// Where `troupe up` runs, a launch is a job of that cluster, with the launcher's
// environment all the same, and leaves the cluster as it was.
func TestLaunchOnARunningCluster(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.up()
	l.env = append(l.env, "MY_SECRET=s3cr3t-of-mine")
	script := l.write("hello.py", `import os, sys
print("rank", os.environ["RANK"], os.environ["MY_SECRET"][:3], "TROUPE_TOKEN" in os.environ)
sys.exit(int(sys.argv[1]))
`)
	if r := l.launch("--nproc-per-node=2", script, "0"); r.code != 0 || strings.Count(r.out, "s3c False\n") != 2 {
		t.Errorf("%v", r)
	}
	if r := l.launch("--nproc-per-node=2", script, "3"); r.code != 1 || !strings.Contains(r.errout, "exitcode  : 3") {
		t.Errorf("%v", r)
	}
	r := l.start("--nproc-per-node=2", l.write("waits.py", waits))
	r.says(`^ready \d+\nready`)
	if second := l.launch(filepath.Join(l.dir, "waits.py")); second.code != api.ExitConflict {
		t.Errorf("%v", second)
	}
	r.signal(syscall.SIGINT)
	if end := r.wait(); end.code != api.ExitInterrupted || strings.Count(end.out, "bye") != 2 {
		t.Errorf("%v", end)
	}
	out := l.want(0, "job", "list", "--no-headers").out
	if strings.Count(out, "hello-") != 2 || strings.Count(out, "STOPPED") != 1 || strings.Count(out, "FAILED") != 1 {
		t.Errorf("%s", out)
	}
	for _, p := range processes(l.dir) {
		if !strings.Contains(p.cmd, " up ") {
			t.Errorf("left: %v", p)
		}
	}
	l.want(0, "status")
	err := filepath.WalkDir(l.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || path == script {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("s3cr3t-of-mine")) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
