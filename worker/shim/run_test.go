package shim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// programs is the folder of the built programs, removed at the end.
var programs string

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "troupe-programs")
	if err != nil {
		return "", err
	}
	programs = dir
	bin := filepath.Join(dir, "hostile")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/troupe-runtime/troupe/test/programs/hostile").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the hostile programs: %w: %s", err, out)
	}
	return bin, nil
})

func hostile(t *testing.T, args ...string) []string {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{bin}, args...)
}

func TestFourRanksStartAndEnd(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		// Several attempts, since a group that was used once is not as a new one.
		for range 3 {
			a.start(a.spec(4, "true"))
			a.wait(wire.EventEnded)
			if e := a.event(wire.EventStarted, a.gen); e == nil || len(e.PIDs) != 4 {
				t.Fatalf("started: %+v", e)
			}
			x := a.exits(a.gen)
			orders := map[int64]bool{}
			for r := range int64(4) {
				if x[r] == nil || x[r].Code != 0 || x[r].ByShim {
					t.Fatalf("rank %d: %+v", r, x[r])
				}
				orders[x[r].Order] = true
			}
			if len(orders) != 4 {
				t.Errorf("orders of the ends are not distinct: %v", orders)
			}
			a.nothingLeft()
		}
		a.end()
	})
}

// P6: whatever a rank does, nothing of it is left when its attempt has ended.
func TestHostileProgramsLeaveNothing(t *testing.T) {
	programs := []struct {
		name  string
		args  []string
		stop  bool // it does not end by itself
		modes string
	}{
		{"ignore-term", []string{"ignore-term"}, true, ""},
		{"daemon", []string{"daemon"}, false, ""},
		{"daemon-then-fails", []string{"daemon", "3"}, false, ""},
		{"family", []string{"family"}, true, ""},
		{"spin", []string{"spin"}, true, ""},
		{"close-stdio", []string{"close-stdio"}, true, ""},
		{"hop", []string{"hop"}, false, "cgroup"}, // a scan cannot catch what never stays
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, mode string) {
				if p.modes != "" && p.modes != mode {
					return
				}
				a := newAgent(t, mode)
				a.start(a.spec(2, hostile(t, p.args...)...))
				a.wait(wire.EventStarted)
				if p.stop {
					if p.name != "close-stdio" {
						a.untilOutput(1, 0, "ready")
						a.untilOutput(1, 1, "ready")
					}
					if err := a.c.Stop(&wire.StopOrder{Grace: unit.Duration(100 * time.Millisecond), Reason: "test"}); err != nil {
						t.Fatal(err)
					}
				}
				a.wait(wire.EventEnded)
				a.nothingLeft()
				if p.name == "ignore-term" {
					for r, x := range a.exits(1) {
						if x.Signal != 9 || x.Code != -1 || !x.ByShim {
							t.Errorf("rank %d: %+v", r, x)
						}
					}
				}
				a.end()
				a.nothingLeft()
			})
		})
	}
}

// untilOutput waits for text in a rank's output while it takes messages.
func (a *agent) untilOutput(gen uint64, rank int64, text string) {
	a.t.Helper()
	path := filepath.Join(a.cfg.Dir, shim.OutputDir, fmt.Sprint(gen-1), fmt.Sprint(rank), "stdout.log")
	deadline := time.Now().Add(patience)
	for {
		b, _ := os.ReadFile(path)
		if strings.Contains(string(b), text) {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("no %q in %s: %q", text, path, b)
		}
		a.pump(5 * time.Millisecond)
	}
}

// pump takes messages for a moment.
func (a *agent) pump(d time.Duration) {
	select {
	case m, ok := <-a.c.Messages():
		if ok {
			a.take(m)
		}
	case <-time.After(d):
	}
}

func TestFirstFailureEndsTheAttempt(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		a.start(a.spec(3, hostile(t, "raise-rank", "1", "7")...))
		a.wait(wire.EventEnded)
		x := a.exits(1)
		if len(x) != 3 || x[1].Code != 7 || x[1].ByShim || x[1].Order != 0 || x[1].Message != "exit code 7" {
			t.Errorf("the rank that failed: %+v", x[1])
		}
		for _, r := range []int64{0, 2} {
			if x[r] == nil || !x[r].ByShim || x[r].Signal != 9 {
				t.Errorf("rank %d, a consequence: %+v", r, x[r])
			}
		}
		a.nothingLeft()
	})
}

// The peers of a rank that was killed from outside get a grace only if one was asked for.
func TestGraceAfterAKill(t *testing.T) {
	for asked, ends := range map[time.Duration]bool{0: false, time.Hour: true} {
		a := newAgent(t, "fallback")
		// The peer ends by itself once told to, which is after the kill was reported.
		word := filepath.Join(t.TempDir(), "word")
		s := a.spec(2, "sh", "-c", `test $RANK = 0 && kill -9 $$; while ! test -e `+word+`; do sleep 0.01; done; exit 5`)
		s.FailureGrace = unit.Duration(asked)
		a.start(s)
		a.wait(wire.EventRankExited)
		if ends {
			if err := os.WriteFile(word, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a.wait(wire.EventEnded)
		x := a.exits(1)
		if x[0] == nil || x[0].Signal != 9 || x[0].ByShim {
			t.Errorf("grace %v: the rank that was killed: %+v", asked, x[0])
		}
		if x[1] == nil || (x[1].Code == 5 && !x[1].ByShim) != ends {
			t.Errorf("grace %v: its peer: %+v", asked, x[1])
		}
	}
}

func TestSignalsAreReported(t *testing.T) {
	for sig, want := range map[string]string{"11": "killed by signal 11 (SIGSEGV)", "9": "killed by signal 9 (SIGKILL)"} {
		a := newAgent(t, "fallback")
		a.start(a.spec(1, "sh", "-c", "kill -"+sig+" $$"))
		a.wait(wire.EventEnded)
		x := a.exits(1)[0]
		if x == nil || x.ByShim || x.Code != -1 || fmt.Sprint(x.Signal) != sig || x.Message != want {
			t.Errorf("signal %s: %+v", sig, x)
		}
	}
}

func TestStopGivesGrace(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		a.start(a.spec(2, hostile(t, "on-term", "0")...))
		a.untilOutput(1, 0, "ready")
		a.untilOutput(1, 1, "ready")
		a.c.Stop(&wire.StopOrder{Grace: unit.Duration(time.Hour), Reason: "drained"})
		e := a.wait(wire.EventEnded)
		if e.Message != "drained" {
			t.Errorf("ended: %+v", e)
		}
		for r, x := range a.exits(1) {
			if x.Code != 0 || !x.ByShim {
				t.Errorf("rank %d: %+v", r, x)
			}
		}
	})
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	cases := []struct {
		name    string
		command []string
		cwd     string
		want    []string
		code    int64
	}{
		{"missing file", []string{filepath.Join(dir, "gone.py")}, "", []string{"gone.py", "no such file"}, 127},
		{"not in PATH", []string{"no-such-program"}, "", []string{`"no-such-program"`, "not found in PATH"}, 127},
		{"not executable", []string{write("plain.py", "print(1)", 0o644)}, "", []string{"plain.py", "not executable", "chmod +x"}, 126},
		{"no interpreter line", []string{write("bare", "print(1)", 0o755)}, "", []string{"bare", "interpreter"}, 126},
		{"missing interpreter", []string{write("lost.sh", "#!/no/such/sh\n", 0o755)}, "", []string{"lost.sh", "interpreter"}, 127},
		{"a directory", []string{dir}, "", []string{dir, "directory"}, 126},
		{"missing working directory", []string{"true"}, filepath.Join(dir, "nowhere"), []string{"nowhere", "working directory"}, 127},
		{"empty command", nil, "", []string{"command is empty"}, 127},
	}
	a := newAgent(t, "fallback")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := a.spec(2, c.command...)
			s.WorkingDir = c.cwd
			a.start(s)
			e := a.wait(wire.EventStartFailed)
			for _, w := range c.want {
				if !strings.Contains(e.Message, w) {
					t.Errorf("message %q does not say %q", e.Message, w)
				}
			}
			if e.Code != c.code {
				t.Errorf("code %d, want %d", e.Code, c.code)
			}
			if len(a.exits(a.gen)) != 0 || a.event(wire.EventStarted, a.gen) != nil {
				t.Error("something was said to run")
			}
			a.nothingLeft()
		})
	}
}

func TestOutOfMemoryIsReported(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		if c := shim.Capabilities(); mode == "cgroup" && c.MemoryRoot == "" {
			t.Skipf("no writable memory controller: %v", c.Why)
		}
		a := newAgent(t, mode, func(c *shim.Config) { c.Limits.Memory = 96 << 20 })
		a.start(a.spec(1, hostile(t, "eat", fmt.Sprint(400<<20))...))
		a.wait(wire.EventEnded)
		x := a.exits(1)[0]
		if x == nil || !x.OOM || x.ByShim || !strings.Contains(x.Message, "out of memory") {
			t.Errorf("exit: %+v", x)
		}
		// The next attempt is not blamed for it.
		a.start(a.spec(1, hostile(t, "exit", "3")...))
		a.wait(wire.EventEnded)
		if x := a.exits(2)[0]; x == nil || x.OOM || x.Code != 3 {
			t.Errorf("exit: %+v", x)
		}
	})
}

func TestOutputIsKeptWhole(t *testing.T) {
	const size = 100_000_000
	a := newAgent(t, "fallback")
	a.start(a.spec(1, hostile(t, "print", fmt.Sprint(size))...))
	a.wait(wire.EventEnded)
	got := a.output(0, 0, "stdout")
	if len(got) != size {
		t.Fatalf("%d bytes, want %d", len(got), size)
	}
	for _, i := range []int{0, 1, size / 2, size - 1} {
		if got[i] != byte(i*7) {
			t.Errorf("byte %d is %d, want %d", i, got[i], byte(i*7))
		}
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("AGENT_SECRET", "canary")
	t.Setenv("TZ", "UTC")
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Devices = []string{"GPU-a", "GPU-b"} })
	s := a.spec(2, hostile(t, "env")...)
	s.Number, s.World, s.GroupRank, s.GroupWorld, s.MasterPort = 4, 6, 1, 3, 29500
	s.Ranks = []wire.RankSpec{{Rank: 2, LocalRank: 0}, {Rank: 3, LocalRank: 1}}
	s.Env = map[string]string{"MINE": "spec", "BOTH": "spec", "RANK": "99"}
	a.start(s, "BOTH=launch", "LAUNCHED=1", "TROUPE_COOKIE=stolen")
	a.wait(wire.EventEnded)
	var got []string
	if err := json.Unmarshal([]byte(a.output(4, 3, "stdout")), &got); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(a.cfg.Dir, shim.OutputDir, "4", "3")
	want := []string{
		"BOTH=spec", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", "GROUP_RANK=1", "GROUP_WORLD_SIZE=3", "LAUNCHED=1",
		"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500", "MINE=spec",
		"OMP_NUM_THREADS=1", "PATH=" + os.Getenv("PATH"), "PYTHONUNBUFFERED=1",
		"RANK=3", "ROLE_NAME=default", "ROLE_RANK=3", "ROLE_WORLD_SIZE=6",
		"TORCHELASTIC_ERROR_FILE=" + filepath.Join(dir, "error.json"), "TORCHELASTIC_MAX_RESTARTS=3",
		"TORCHELASTIC_RESTART_COUNT=4", "TORCHELASTIC_RUN_ID=run-a", "TORCHELASTIC_USE_AGENT_STORE=False",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "TROUPE_ATTEMPT=4", "TROUPE_COOKIE=" + a.cfg.Cookie,
		"TROUPE_GENERATION=1", "TROUPE_JOB=job-7f3k", "TROUPE_RUN=run-a",
		"TROUPE_SOCKET=" + filepath.Join(a.cfg.SocketDir, shim.RankSocket), "TZ=UTC", "WORLD_SIZE=6",
	}
	for _, name := range []string{"HOME", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			want = append(want, name+"="+v)
		}
	}
	sort.Strings(want)
	sort.Strings(got)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("environment:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLocalRankMacro(t *testing.T) {
	a := newAgent(t, "fallback")
	a.start(a.spec(2, "echo", "dev${local_rank}", "$RANK"))
	a.wait(wire.EventEnded)
	for r := range int64(2) {
		if got, want := a.output(0, r, "stdout"), fmt.Sprintf("dev%d $RANK\n", r); got != want {
			t.Errorf("rank %d printed %q, want %q", r, got, want)
		}
	}
}

// A rank that fails in Python is told by its own words.
func TestTracebackIsFound(t *testing.T) {
	python, err := exec.LookPath("python3")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no python3 on this machine")
	}
	a := newAgent(t, "fallback")
	a.start(a.spec(1, python, "-c", "raise ValueError('bad shape')"))
	a.wait(wire.EventEnded)
	x := a.exits(1)[0]
	if x.Code != 1 || x.Message != "ValueError: bad shape" || !strings.HasPrefix(x.Traceback, "Traceback (most recent call last):") {
		t.Errorf("exit: %+v", x)
	}
	script := `import os,json,sys
json.dump({"message":{"message":"RuntimeError: from the file","extraInfo":{"py_callstack":"Traceback: here","timestamp":"1700000000"}}}, open(os.environ["TORCHELASTIC_ERROR_FILE"],"w"))
sys.exit(5)`
	a.start(a.spec(1, python, "-c", script))
	a.wait(wire.EventEnded)
	x = a.exits(2)[0]
	if x.Code != 5 || x.Message != "RuntimeError: from the file" || x.Traceback != "Traceback: here" || x.ErrorTime != "1700000000" {
		t.Errorf("exit: %+v", x)
	}
}
