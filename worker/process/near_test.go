package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// emptyGroup looks like a group in which nothing lives.
func emptyGroup(t *testing.T) Groups {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "g")
	if err := os.MkdirAll(filepath.Join(dir, "ranks"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.events": "populated 0\n", "cgroup.procs": "", "cgroup.kill": ""} {
		if err := os.WriteFile(filepath.Join(dir, "ranks", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Groups{Kill: dir}
}

// nearScanner sweeps for this process, which is a subreaper for the length of the test, and
// counts its looks at the machine.
func nearScanner(t *testing.T) (s *scanner, looks *int) {
	t.Helper()
	subreaper := func(on uintptr) {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	subreaper(1)
	t.Cleanup(func() { subreaper(0) })
	s = newScanner(Target{Near: true, Root: os.Getpid(), Groups: emptyGroup(t)})
	eventually(t, func() error {
		if !s.alone() {
			return errors.New("a test before this one has left a child")
		}
		return nil
	})
	looks = new(int)
	list := s.list
	s.list = func() ([]int, error) { *looks++; return list() }
	return s, looks
}

// An empty group and no child prove that nothing is left, without a look at anything else.
func TestNearSweepOfNothingLooksNowhere(t *testing.T) {
	s, looks := nearScanner(t)
	if res := sweep(context.Background(), s, s.kill); !res.Clean() || *looks > 0 {
		t.Errorf("%+v after %d looks at the machine", res, *looks)
	}
	for name, change := range map[string]func(*Target){
		"not asked for":   func(t *Target) { t.Near = false },
		"no group":        func(t *Target) { t.Groups = Groups{} },
		"of another tree": func(t *Target) { t.Root = 1 << 30 },
		"something kept":  func(t *Target) { t.Keep = []int{1 << 30} },
		"a dead shim":     func(t *Target) { t.Whole = true },
	} {
		target := s.t
		if change(&target); newScanner(target).near() {
			t.Errorf("%s: group and tree were taken for the whole proof", name)
		}
	}
}

// What has left the group, its session and its parent is below the subreaper all the same.
func TestNearSweepFindsWhatLeftTheGroup(t *testing.T) {
	s, looks := nearScanner(t)
	out, err := exec.Command("sh", "-c", "setsid env -i sleep 1000 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("an orphan: %s", out)
	go func() { // as a shim reaps
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	if res := sweep(context.Background(), s, s.kill); !res.Clean() || res.Killed != 1 || *looks == 0 {
		t.Errorf("%+v after %d looks at the machine", res, *looks)
	}
}

// One search ends what carries any of the marks, and nothing else.
func TestSweepMarks(t *testing.T) {
	first, second, other := marked(t, "marks-first"), marked(t, "marks-second"), marked(t, "marks-other")
	res := SweepMarks(context.Background(), []string{"marks-first", "marks-second", "marks-nobody"})
	if !res.Clean() || res.Killed != 2 {
		t.Errorf("%+v", res)
	}
	for pid, alive := range map[int]bool{first: false, second: false, other: true} {
		if p, err := ReadProc(pid); (err == nil && !p.Dead()) != alive {
			t.Errorf("process %d: %+v %v, want alive %t", pid, p, err, alive)
		}
	}
	if res := SweepMarks(context.Background(), nil); !res.Clean() || res.Killed != 0 {
		t.Errorf("no mark: %+v", res)
	}
}
