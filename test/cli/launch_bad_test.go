package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Scripts that go wrong in every way end the launch, with the right words and code, and
// leave nothing behind.
func TestLaunchBadScripts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		code         int
		says         []string // on either stream
	}{
		{"raises at import", "import nothing_of_that_name\n", 1, []string{"exitcode  : 1 (pid: ", "ModuleNotFoundError: No module named 'nothing_of_that_name'"}},
		{"0 and 42", "import os, sys, time\nif os.environ['RANK'] == '1': time.sleep(0.2); sys.exit(42)\n", 1, []string{"rank      : 1 (local_rank: 1)", "exitcode  : 42 (pid: "}},
		{"dies by a signal", "import os\nif os.environ['RANK'] == '0': os.abort()\n__import__('time').sleep(1000)\n", 1, []string{"rank      : 0 (local_rank: 0)", "(SIGABRT)", "exitcode  : -6 (pid: "}},
		{"closes its stdio", "import os\nfor fd in 0, 1, 2: os.close(fd)\nos._exit(5)\n", 1, []string{"exitcode  : 5 (pid: "}},
		{"changes and loses its folder", "import os\nd = 'gone' + os.environ['RANK']\nos.mkdir(d); os.chdir(d); os.rmdir('../' + d)\nprint('here')\n", 0, []string{"here\n"}},
		{"leaves a daemon", "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in 0, 1, 2: os.close(fd)\n        time.sleep(1000)\n    os._exit(0)\nos.wait()\nsys.exit(0)\n", 0, nil},
		{"prints what is no text", "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 64 + b'\\nend\\n')\n", 0, []string{"end\n"}},
		{"is empty", "", 0, nil},
		{"does not parse", "def", 1, []string{"SyntaxError"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t)
			r := l.launch("--nproc-per-node=2", l.write("bad.py", c.script))
			l.left(r)
			if r.code != c.code || (c.code != 0) != strings.Contains(r.errout, "bad.py FAILED") {
				t.Errorf("%v", r)
			}
			for _, want := range c.says {
				if !strings.Contains(r.out+r.errout, want) {
					t.Errorf("%q is missing: %v", want, r)
				}
			}
		})
	}
}

// A line of 100 MB reaches its file byte for byte.
func TestLaunchEndlessLine(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("line.py", "import sys\nfor i in range(100): sys.stdout.write(chr(97 + i % 26) * 1000000)\nsys.stdout.write('\\nend\\n')\n")
	r := l.launch("--log-dir=logs", "-r1", script)
	l.left(r)
	files, err := filepath.Glob(filepath.Join(l.dir, "logs", "*", "attempt_0", "0", "stdout.log"))
	if err != nil || len(files) != 1 || r.code != 0 {
		t.Fatalf("%v %v %v", files, err, r)
	}
	b, err := os.ReadFile(files[0])
	var want []byte
	for i := range 100 {
		want = append(want, bytes.Repeat([]byte{byte('a' + i%26)}, 1000000)...)
	}
	if want = append(want, "\nend\n"...); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%d bytes arrived of %d, %v", len(b), len(want), err)
	}
}

// A job over several nodes starts on none when one of them lacks its program: the first
// attempt is not begun, and the error names the node and the path.
func TestStartIsCheckedOnEveryNode(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	h.ready()
	h.env = append(h.env, "PATH="+h.path("venv")+string(os.PathListSeparator)+os.Getenv("PATH"))
	den := h.start("worker", "start", "--state", h.path("node2"), "--name", "den", "--cpus", "4",
		"--head", "nats://"+h.busAddr, "--token-file", h.path("head/node.token"))
	t.Cleanup(func() {
		_ = den.cmd.Process.Signal(syscall.SIGTERM) // may have ended
		den.wait()
	})
	eventually(t, "two nodes are not ready", func() error {
		if r := h.troupe("node", "list"); strings.Count(r.out, "READY") != 2 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	h.write("venv/mine", "#!/bin/sh\necho rank $RANK >> "+h.path("ran")+"\n") // den's PATH alone finds it
	submit := func(dir string, command ...string) api.Job {
		t.Helper()
		spec := api.JobSpec{Name: "j", Ranks: 2, Strategy: api.StrictSpread, WorkingDir: dir, Command: command}
		j, err := h.client().SubmitJob(t.Context(), spec, "")
		if err != nil {
			t.Fatal(err)
		}
		if j, err = h.client().WaitJob(t.Context(), j.ID, nil); err != nil {
			t.Fatal(err)
		}
		return j
	}
	for _, c := range []struct{ dir, program, node, says string }{
		{h.dir, "mine", "box", `"mine" was not found in PATH`},
		{h.path("gone"), h.path("venv/mine"), "", h.path("gone")},
	} {
		j := submit(c.dir, c.program)
		if j.State != api.Failed || j.ExitCode == nil || *j.ExitCode != 127 || len(j.Attempts) != 0 || j.Reason == nil ||
			j.Reason.Code != api.ReasonUserError || !strings.Contains(j.Reason.Text, "node "+c.node) || !strings.Contains(j.Reason.Text, c.says) {
			t.Errorf("%s, %+v, %d attempts", j.State, j.Reason, len(j.Attempts))
		}
	}
	if b, err := os.ReadFile(h.path("ran")); err == nil {
		t.Errorf("a rank has run: %s", b)
	}
	if j := submit(h.dir, h.path("venv/mine")); j.State != api.Succeeded {
		t.Errorf("%s, %+v", j.State, j.Reason)
	}
}

// What cannot start says so before anything does: the place and what is wrong with it.
func TestLaunchStartChecks(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.up("--name", "box")
	script := l.write("fine.py", "print('fine')\n")
	l.env = append(l.env, "PYTHON_EXEC=/no/such/python")
	if r := l.launch("--nproc-per-node=2", script); r.code != 66 || !strings.Contains(r.errout, "no program /no/such/python") {
		t.Errorf("%v", r)
	}
	l.env = l.env[:len(l.env)-1]
	// Past the checks of this command, the node says it, by its name, and no rank runs.
	one := int64(0)
	for path, spec := range map[string]api.JobSpec{
		"/no/such/folder": {Name: "folder", WorkingDir: "/no/such/folder", Command: []string{"touch", filepath.Join(l.dir, "ran")}},
		"no-such-program": {Name: "program", WorkingDir: l.dir, Command: []string{"no-such-program"}},
	} {
		spec.Ranks, spec.Restart.User = 2, &one
		j, err := l.client().SubmitJob(t.Context(), spec, "")
		if err != nil {
			t.Fatal(err)
		}
		l.want(127, "job", "wait", j.ID)
		out := l.want(0, "why", j.ID).out
		if !strings.Contains(out, "[UserError]") || !strings.Contains(out, path) || !strings.Contains(out, "box") {
			t.Errorf("%s", out)
		}
	}
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("a rank has run")
	}
}
