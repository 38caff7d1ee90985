package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/script. Besides the usual commands there are
//
//	exits N COMMAND…         run it; its exit code is N
//	until REGEXP COMMAND…    run it again until it succeeds and its output matches
//	nothing-left             no process of this script's folder is left
//	one-problem              the last command's stderr is one problem object with its exit code
//	fill SIZE FILE           a file of that many bytes
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true, RequireUniqueNames: true, UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, userEnv(e.WorkDir)...)
			work := e.WorkDir
			e.Defer(func() {
				downAll(work)
				endAll(t, work)
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "until": until, "nothing-left": nothingLeft, "one-problem": oneProblem, "fill": fill,
		},
	})
}

func run(ts *testscript.TestScript, args []string) (code int) {
	err := ts.Exec(args[0], args[1:]...)
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		ts.Fatalf("%v", err)
	}
	if x != nil {
		return x.ExitCode()
	}
	return 0
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := run(ts, args[1:]); got != want {
		ts.Fatalf("exit %d, want %d", got, want)
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND…")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		code := run(ts, args[1:])
		if code == 0 && re.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("never matched %q; last: exit %d\n%s", args[0], code, ts.ReadFile("stdout"))
		}
	}
}

func nothingLeft(ts *testscript.TestScript, neg bool, _ []string) {
	dir := ts.Getenv("WORK")
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := processes(dir)
		if len(left) == 0 != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("left: %v", left)
		}
	}
}

func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fill SIZE FILE")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Repeat("x: [\n", n/5)), 0o600))
}

func oneProblem(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: one-problem EXIT")
	}
	p, err := problemIn(ts.ReadFile("stderr"))
	if err != nil {
		ts.Fatalf("stderr is not one problem: %v", err)
	}
	if want := args[0]; fmt.Sprint(p.Exit) != want || p.Code == "" || p.Detail == "" {
		ts.Fatalf("problem %+v, want exit %s, a code and a detail", p, want)
	}
}
