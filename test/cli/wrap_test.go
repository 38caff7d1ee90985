package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// --wrap stands in front of each rank's command, its words split as a shell does.
func TestWrap(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.up()
	wrapper := l.write("my wrapper.sh", "#!/bin/sh\necho \"wrapped by $1|$2\"; shift 2; exec \"$@\"\n")
	script := l.write("hello.py", "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
	wrap := "'" + wrapper + "' one \"two three\""
	for _, r := range []result{
		l.launch("--nproc-per-node=2", "--wrap", wrap, script, "a b"),
		l.want(0, "run", "--ranks", "2", "--wrap", wrap, "--", l.python, script, "a b"),
		l.want(0, "run", "--nproc-per-node", "2", "--wrap="+wrap, script, "a b"),
	} {
		if r.code != 0 || strings.Count(r.out, "wrapped by one|two three\n") != 2 || strings.Count(r.out, " ['a b']\n") != 2 {
			t.Errorf("%v", r)
		}
	}
	for words, code := range map[string]int{"'open": 64, "a; b": 64, "nosuchwrapper x": 66, "   ": 0} {
		if r := l.launch("--wrap", words, script); r.code != code {
			t.Errorf("--wrap %q: %v", words, r)
		}
	}
}

// torchrun's words for the size of a job make one that run can place, or are refused.
func TestRunSizes(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.env = append(h.env, "PET_NPROC_PER_NODE=3")
	for words, want := range map[string]string{"": "3 STRICT_PACK", "--nproc_per_node=2 --nnodes=1": "2 STRICT_PACK", "--nproc-per-node 1 --nnodes 1 --strategy SPREAD": "1 SPREAD", "--nnodes 1:2": "3 PACK"} {
		h.want(0, append(append([]string{"run"}, strings.Fields(words)...), "--", "true")...)
		j := h.job(strings.TrimSpace(strings.Split(h.want(0, "ps", "-o", "name").out, "\n")[0]))
		if got := fmt.Sprint(j.Spec.Ranks, " ", j.Spec.Strategy); got != want {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
	for words, want := range map[string]string{
		"--nnodes 2": "(3 bundles); 1 node could ever hold that; 1 node missing", "--ranks 2": "make 3", "--nproc-per-node=gpu": "not every node has a GPU",
		"--nproc-per-node=tpu": "neither a number",
	} {
		r := h.troupe(append(append([]string{"run"}, strings.Fields(words)...), "--", "true")...)
		if r.code != 64 && r.code != 78 || !strings.Contains(r.errout, want) {
			t.Errorf("%s: %v", words, r)
		}
	}
}

// What run starts is what the caller's PATH finds, also when it is another than that of
// the shell that ran `up`.
func TestRunTakesTheCallersProgram(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.write("venv/bin/mine", "#!/bin/sh\necho mine of $0\n")
	h.env = append(h.env, "PATH="+filepath.Join(h.dir, "venv/bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	r := h.want(0, "run", "--", "mine")
	if want := "mine of " + filepath.Join(h.dir, "venv/bin/mine") + "\n"; r.out != want {
		t.Errorf("%v", r)
	}
	if r := h.want(66, "run", "--", "nobodys"); !strings.Contains(r.errout, "no program nobodys in PATH") {
		t.Errorf("%v", r)
	}
	h.write("plain", "echo\n")
	if err := os.Chmod(filepath.Join(h.dir, "plain"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.want(66, "run", "--", "./plain"); !strings.Contains(r.errout, "is not executable") {
		t.Errorf("%v", r)
	}
	// The same words twice under why of a success say it once.
	out := h.want(0, "why", "@last").out
	if strings.Contains(out, "[]") || strings.Count(out, "the only rank ended with exit code 0") != 2 { // the answer and the event
		t.Errorf("%s", out)
	}
	long := h.start("run", "--", "sleep", "1000")
	long.says("Ctrl-C stops it")
	h.want(0, "job", "wait", "@last", "--for", "running")
	h.want(0, "job", "stop", "@last", "--yes")
	// It was asked to end: that is no success, and no code of its own.
	if end := long.wait(); end.code != api.ExitFailed {
		t.Errorf("%v", end)
	}
	if j := h.job("sleep-"); j.State != api.Stopped || j.ExitCode != nil {
		t.Errorf("%s, %v", j.State, j.ExitCode)
	}
}
