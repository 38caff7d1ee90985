package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// mountSmall is a file system of a few megabytes.
func mountSmall(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// refusedStart starts `up` on a folder that it must refuse, soon and with these words.
func (c *cluster) refusedStart(words ...string) result {
	c.t.Helper()
	r := c.troupe("up", "-d", "--state", c.state, "--port", "0", "--gpus", "none", "--name", "n1")
	if r.code == 0 {
		c.troupe("down", "--state", c.state, "--yes")
		c.t.Fatalf("a damaged folder was accepted: %s", r)
	}
	for _, w := range append(words, c.state) {
		if !strings.Contains(r.err, w) {
			c.t.Errorf("the refusal does not say %q: %s", w, r)
		}
	}
	if strings.Contains(r.err, "panic") || strings.Contains(r.err, "not ready within") {
		c.t.Errorf("%s", r)
	}
	return r
}

// TestAlteredFolder: what is not the cluster's is refused at once, by name, and nothing
// of the folder is changed by the refusal.
func TestAlteredFolder(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	c.ended(c.submit(spec("first", 1, "true")), api.Succeeded, 0)
	c.kill("up")
	for _, k := range []struct {
		file string
		to   func([]byte) []byte
		word string
	}{
		{"head/raft/NODE", func([]byte) []byte { return []byte("stranger\n") }, "stranger"},
		{"head/raft/FORMAT", func([]byte) []byte { return []byte("99\n") }, "newer"},
		{"head/raft/FORMAT", func([]byte) []byte { return nil }, "FORMAT"},
		{"head/raft/wal/meta", func(b []byte) []byte { b[len(b)/2] ^= 4; return b }, "meta"},
		{"head/node.token", func([]byte) []byte { return []byte(strings.Repeat("ab", 32)) }, "node.token"},
		{"head/admin.token", func([]byte) []byte { return []byte(strings.Repeat("ab", 32)) }, "admin.token"},
		{"head/admin.token", func([]byte) []byte { return []byte("short") }, "admin.token"},
		{"head/bus.key", func([]byte) []byte { return []byte("\x00\x00") }, "bus.key"},
		{"node/node-id", func([]byte) []byte { return []byte("n o t / an id") }, "node-id"},
	} {
		t.Run(filepath.Base(k.file), func(t *testing.T) {
			sub := *c
			sub.t = t
			path := filepath.Join(c.state, k.file)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, k.to(append([]byte(nil), good...)), 0o600); err != nil {
				t.Fatal(err)
			}
			sub.refusedStart(k.word)
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	c.up()
	if l := get[api.List[api.Job]](c, "job", "list"); len(l.Items) != 1 {
		t.Errorf("%d jobs are left", len(l.Items))
	}
}

// TestStaleUpFile: up.json is a hint about a process, never a reason to refuse or to end
// another one.
func TestStaleUpFile(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	t.Parallel()
	c := start(t, options{})
	c.kill("up")
	path := filepath.Join(c.state, "up.json")
	for _, text := range []string{
		"", "{", fmt.Sprintf(`{"pid":%d,"startTime":1,"api":"http://127.0.0.1:1"}`, os.Getpid()), `{"pid":-1}`, `{"pid":999999999999999}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := c.troupe("down", "--state", c.state); r.code != api.ExitNotFound {
			t.Errorf("up.json %q: %s", text, r)
		}
		c.up()
		if r := c.troupe("up", "-d", "--state", c.state, "--port", "0"); r.code != api.ExitConflict {
			t.Errorf("two clusters on one folder: %s", r)
		}
		c.kill("up")
	}
}

// TestSocketsDeleted: without its sockets a shim cannot be told anything; the job ends
// all the same, and so does the next.
func TestSocketsDeleted(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	hold := filepath.Join(c.dir, "hold")
	id := c.submit(chain("sockets", "--steps", "5", "--hold", hold))
	c.await("steps are done", func() (string, bool) {
		r := c.troupe("logs", id)
		return r.String() + c.tell(id), strings.Count(r.out, "done 5") == 2
	})
	if err := os.RemoveAll(filepath.Join(c.state, "node", "s")); err != nil {
		t.Fatal(err)
	}
	// A restart of the cluster must find the shim without its socket, or end it.
	c.kill("up")
	c.up()
	if r := c.troupe("stop", id, "--yes"); r.code != 0 {
		t.Errorf("%s", r)
	}
	c.ended(id, api.Stopped, 0)
	c.ended(c.submit(chain("next", "--steps", "3")), api.Succeeded, 0)
	c.idle()
}

// TestFullDisk: a head whose disk is full acknowledges nothing that it cannot keep, says
// so, and needs no repair when there is room again.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "hostile-full-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mountSmall(t, dir, "48m")
	c := start(t, options{state: filepath.Join(dir, "st")})
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 64<<10)); err != nil {
			break
		}
	}
	acked := map[string]bool{}
	var refused result
	for i := range 400 {
		s := with(spec(fmt.Sprintf("fill-%d", i), 1, "true"), "env", map[string]string{"PADDING": strings.Repeat("x", 60<<10)})
		r := c.trySubmit(s)
		var j api.Job
		if r.code == 0 && json.Unmarshal([]byte(r.out), &j) == nil {
			acked[j.ID] = true
			continue
		}
		refused = r
		break
	}
	t.Logf("%d jobs were acknowledged, then: %s", len(acked), refused)
	if refused.code == 0 || refused.code == 70 {
		t.Errorf("a full disk is refused as %s", refused)
	}
	if err := os.Truncate(ballast, 0); err != nil {
		t.Fatal(err)
	}
	up := c.daemons["up"]
	if r := c.troupe("status"); r.code != 0 {
		code := up.wait(t, patience)
		t.Logf("the cluster left with exit code %d", code)
		if b, _ := os.ReadFile(up.log); !strings.Contains(string(b), "no space left") {
			t.Errorf("it does not say why:\n%s", tail(up.log))
		}
		c.up()
	}
	for id := range acked {
		if r := c.troupe("job", "get", id, "-o", "json"); r.code != 0 {
			t.Errorf("an acknowledged job is lost: %s", r)
		}
	}
	c.ended(c.submit(spec("after", 1, "true")), api.Succeeded, 0)
}
