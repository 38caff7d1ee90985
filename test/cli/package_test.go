package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/pack"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// A folder that is sent along is all that a job needs of the machine it was submitted on,
// also when an attempt is started again; ranks write into a copy that goes with the job.
func TestWorkingDirTravels(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	h.write("src/train.sh", `echo "attempt $TROUPE_ATTEMPT with $(cat data/x) $(ls | tr '\n' ' ')"; echo $$ >> wrote; if test $TROUPE_ATTEMPT = 1; then exit 0; fi; while :; do sleep 0.05; done`)
	h.write("src/data/x", "content")
	h.write("src/secret.log", "")
	h.write("src/__pycache__/m.pyc", "")
	h.write("src/.troupeignore", "*.log\n")
	r := h.want(0, "run", "--detach", "--name", "sent", "--working-dir", "src", "--", "sh", "train.sh")
	if !strings.Contains(r.errout, "packed src: 3 files") {
		t.Errorf("it does not say what it packs: %v", r)
	}
	if err := os.RemoveAll(filepath.Join(h.dir, "src")); err != nil {
		t.Fatal(err)
	}
	var j api.Job
	eventually(t, "the job does not run", func() error {
		if j = h.job("sent-"); j.State != api.Running || pids(j) == "0" {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	copies, err := filepath.Glob(filepath.Join(h.dir, "state/troupe/local/node/alloc/*/work"))
	if err != nil || len(copies) != 1 {
		t.Fatalf("copies: %v %v", copies, err)
	}
	if get := h.want(0, "job", "get", "sent-"); !strings.Contains(get.out, j.Spec.Package) || !pack.ValidHash(j.Spec.Package) {
		t.Errorf("job get does not show the package %q: %v", j.Spec.Package, get)
	}
	eventually(t, "the rank does not come so far", func() error {
		_, err := os.Stat(filepath.Join(copies[0], "wrote"))
		return err
	})
	var pid int
	if _, err := fmt.Sscan(pids(j), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.want(0, "wait", "sent-")
	for attempt, files := range []string{"data train.sh", "data train.sh wrote"} {
		want := fmt.Sprintf("attempt %d with content %s", attempt, files)
		if log := h.want(0, "job", "logs", "sent-", "--attempt", fmt.Sprint(attempt)); !strings.Contains(log.out, want) {
			t.Errorf("want %q in %v", want, log)
		}
	}
	eventually(t, "the copy stays behind", func() error {
		if _, err := os.Stat(copies[0]); err == nil {
			return errors.New(copies[0])
		}
		return nil
	})
}

func TestWorkingDirIsRefusedHere(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write("src/train.sh", "")
	h.write("src/large/file", strings.Repeat("x", 3<<20))
	if err := os.Symlink("/mnt/data", filepath.Join(h.dir, "src", "data")); err != nil {
		t.Fatal(err)
	}
	run := []string{"run", "--working-dir", "src"}
	for _, c := range []struct {
		ignore string
		args   []string
		code   int
		text   string
	}{
		{"", []string{"--", "sh", "train.sh"}, 65, `"data" is a link to the absolute path "/mnt/data"`},
		{"data\n", []string{"--working-dir-limit", "2MiB", "--", "sh", "train.sh"}, 65, "over the limit of 2.0 MiB; the largest: large/ 3.0 MiB"},
		{"data\n", []string{"--working-dir-limit", "2GiB", "--", "sh", "train.sh"}, 65, "packages hold at most 1000.0 MiB"},
		{"data\n*.sh\n", []string{"--", "./train.sh"}, 66, "no train.sh in the package"},
		{"data\n", []string{"--workdir", "/src", "--", "sh", "train.sh"}, 64, "relative"},
		{"data\n", []string{"--workdir", "nosuch", "--", "sh", "train.sh"}, 66, "no folder nosuch"},
		{"a//b\n", []string{"--", "sh", "train.sh"}, 65, ".troupeignore:1"},
	} {
		h.write("src/.troupeignore", c.ignore)
		r := h.troupe(append(run, c.args...)...)
		if r.code != c.code || !strings.Contains(r.errout, c.text) {
			t.Errorf("%q: want exit %d and %q of %v", c.ignore, c.code, c.text, r)
		}
	}
}

// archive packs a folder of one script and some bytes that do not compress.
func (h *home) archive(script string, size int) (pack.Sum, func() (io.ReadCloser, error)) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "archive")
	h.write("archive/run.sh", script)
	noise := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise) // never fails
	h.write("archive/noise", string(noise))
	f, err := pack.Scan(h.t.Context(), dir, pack.MaxBytes)
	if err != nil {
		h.t.Fatal(err)
	}
	var b bytes.Buffer
	sum, err := f.Write(h.t.Context(), &b)
	if err != nil {
		h.t.Fatal(err)
	}
	return sum, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
}

// What the head has acknowledged outlives it: a job that names the package after the crash
// runs. One that names a package that nobody sent is refused, with what to do.
func TestHeadDiesBetweenUploadAndSubmit(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	h.ready()
	sum, open := h.archive("wc -c < noise", 1<<20)
	if sent, err := h.client().PutPackage(t.Context(), sum.Hash, sum.Size, open); err != nil || !sent {
		t.Fatal(sent, err)
	}
	h.head.signal(syscall.SIGKILL)
	h.head.wait()
	h.startHead()
	h.ready()
	cl := h.client()
	if sent, err := cl.PutPackage(t.Context(), sum.Hash, sum.Size, open); err != nil || sent {
		t.Errorf("sent again: %v %v", sent, err)
	}
	spec := api.JobSpec{Name: "after", Command: []string{"sh", "run.sh"}, Package: sum.Hash}
	j, err := cl.SubmitJob(t.Context(), spec, "")
	if err != nil {
		t.Fatal(err)
	}
	if j, err = cl.WaitJob(t.Context(), j.ID, nil); err != nil || j.State != api.Succeeded {
		t.Fatalf("%v %+v", err, j)
	}
	if log := h.want(0, "job", "logs", j.ID); !strings.Contains(log.out, fmt.Sprint(1<<20)) {
		t.Error(log)
	}
	none := sha256.Sum256(nil)
	spec.Package = hex.EncodeToString(none[:])
	_, err = cl.SubmitJob(t.Context(), spec, "")
	if p := troupe.AsProblem(err); p == nil || p.Code != "TRP-P404" || !strings.Contains(p.Help, "--working-dir") {
		t.Errorf("an unknown package: %v", err)
	}
}

// An agent that is killed while a package comes starts anew and gets it whole.
func TestAgentDiesInMidFetch(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	h.ready()
	sum, open := h.archive("wc -c < noise; sha256sum noise run.sh | wc -l", 128<<20)
	cl := h.client()
	if _, err := cl.PutPackage(t.Context(), sum.Hash, sum.Size, open); err != nil {
		t.Fatal(err)
	}
	j, err := cl.SubmitJob(t.Context(), api.JobSpec{Name: "big", Command: []string{"sh", "run.sh"}, Package: sum.Hash}, "")
	if err != nil {
		t.Fatal(err)
	}
	parts := func() []string {
		list, err := filepath.Glob(h.path("node/packages/*.part"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	eventually(t, "the package does not begin to come", func() error {
		for _, p := range parts() {
			if st, err := os.Stat(p); err == nil && st.Size() > 0 {
				return nil
			}
		}
		return errors.New("no part of it is here")
	})
	h.worker.signal(syscall.SIGKILL)
	h.worker.wait()
	if len(parts()) == 0 {
		t.Fatal("it had come before the agent was killed: this proves nothing")
	}
	eventually(t, "why does not say what the job waits for", func() error {
		if r := h.troupe("why", "job/"+j.ID); !strings.Contains(r.out, "The package is still being fetched by box") {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	h.startWorker()
	h.ready()
	if j, err = cl.WaitJob(t.Context(), j.ID, nil); err != nil || j.State != api.Succeeded {
		t.Fatalf("%v %+v", err, j)
	}
	if log := h.want(0, "job", "logs", j.ID); !strings.Contains(log.out, fmt.Sprint(128<<20)) {
		t.Error(log)
	}
	if left := parts(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A job over two nodes has a copy on each, and what it needs is looked for in the package
// before any rank starts.
func TestPackageOverTwoNodes(t *testing.T) {
	t.Parallel()
	h := newApart(t)
	second := h.start("worker", "start", "--state", h.path("node2"), "--name", "box2", "--cpus", "4",
		"--head", "nats://"+h.busAddr, "--token-file", h.path("head/node.token"))
	t.Cleanup(func() {
		_ = second.cmd.Process.Signal(syscall.SIGTERM) // may have ended
		second.wait()
	})
	eventually(t, "two nodes are not ready", func() error {
		if r := h.troupe("node", "list"); strings.Count(r.out, "READY") != 2 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	h.write("src/run.sh", "#!/bin/sh\npwd; cat x")
	h.write("src/x", "content")
	run := []string{"run", "--working-dir", "src", "--strategy", "STRICT_SPREAD", "--ranks", "2", "--"}
	r := h.want(0, append(run, "./run.sh")...)
	for _, node := range []string{"node", "node2"} {
		if !strings.Contains(r.out, h.path(node)+"/alloc/") || strings.Count(r.out, "content") != 2 {
			t.Errorf("no copy on %s: %v", node, r)
		}
	}
	r = h.troupe(append(run, "no-such-program")...)
	if r.code != 127 || !strings.Contains(r.errout, "cannot start on node") || strings.Contains(r.errout, h.dir) {
		t.Errorf("a program that nobody has: %v", r)
	}
}
