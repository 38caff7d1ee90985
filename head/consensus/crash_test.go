package consensus

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// child is the process that TestSIGKILL kills: it proposes numbers from where the
// log ends and prints each one that was acknowledged.
func child(dir string) {
	die := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	c := testConfig(dir)
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 100, 200, 20*time.Millisecond
	m := &testMachine{}
	n, err := Open(c, m)
	if err != nil {
		die(err)
	}
	ctx := context.Background()
	if _, err := n.WaitLeader(ctx); err != nil {
		die(err)
	}
	if err := n.Barrier(ctx); err != nil {
		die(err)
	}
	for i := len(m.all()); ; i++ {
		if _, err := n.Propose(ctx, []byte(strconv.Itoa(i)+strings.Repeat(" ", i%500))); err != nil {
			die(err)
		}
		fmt.Println(i)
	}
}

// TestSIGKILL: what a process acknowledged before it was killed is there afterwards,
// in order and once (P5, the part of one head).
func TestSIGKILL(t *testing.T) {
	c := initDir(t)
	rng := rand.New(rand.NewPCG(8, 20))
	acked := -1
	for round := range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+c.Dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// A child that hangs must not hang the test.
		watchdog := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
		lines := bufio.NewScanner(out)
		for range 1 + rng.IntN(300) {
			if !lines.Scan() {
				break
			}
			if acked, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Signal(syscall.SIGKILL)
		for lines.Scan() { // what it still said before it died counts as well
			if v, err := strconv.Atoi(lines.Text()); err == nil {
				acked = v
			}
		}
		_ = cmd.Wait()
		watchdog.Stop()
		if stderr.Len() > 0 {
			t.Fatalf("round %d: %s", round, stderr.String())
		}
		n, m := open(t, c)
		lead(t, n)
		got := m.all()
		closeNode(t, n)
		if len(got) <= acked {
			t.Fatalf("round %d: %d entries are there, %d were acknowledged", round, len(got), acked+1)
		}
		for i, e := range got {
			if strings.TrimRight(e, " ") != strconv.Itoa(i) {
				t.Fatalf("round %d: entry %d is %q", round, i, e)
			}
		}
	}
	if acked < 20 {
		t.Fatalf("only %d proposals in 20 rounds", acked)
	}
}

// TestCrashImage opens copies of the folder taken while the node writes, which is
// what a kill leaves, for the price of a copy.
func TestCrashImage(t *testing.T) {
	c := initDir(t)
	n, _ := open(t, c)
	lead(t, n)
	var acked []string
	for i := range 10 {
		for j := range 20 {
			e := fmt.Sprintf("%d-%d-%s", i, j, strings.Repeat("y", 300))
			propose(t, n, e)
			acked = append(acked, e)
		}
		d := c
		d.Dir = filepath.Join(t.TempDir(), "image")
		copyDir(t, c.Dir, d.Dir)
		n2, m2 := open(t, d)
		lead(t, n2)
		if got := m2.all(); !slices.Equal(got, acked) {
			t.Fatalf("image %d: %d entries, want %d", i, len(got), len(acked))
		}
		closeNode(t, n2)
	}
}
