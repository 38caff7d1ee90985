package hostile

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// running is a job that runs and goes on until hold is written.
func (c *cluster) running(name string) (id, hold string) {
	c.t.Helper()
	hold = filepath.Join(c.dir, "hold-"+name)
	id = c.submit(chain(name, "--steps", "5", "--hold", hold))
	c.await("steps are done", func() (string, bool) {
		r := c.troupe("logs", id)
		return r.String() + c.tell(id), strings.Count(r.out, "done 5") == 2
	})
	return id, hold
}

// release lets a running job end, which it must do well and in its first attempt.
func (c *cluster) release(id, hold string) {
	c.t.Helper()
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	if j := c.ended(id, api.Succeeded, 0); j.Attempt != 0 {
		c.t.Errorf("%d restarts: %s", j.Attempt, c.tell(id))
	}
}

// TestGarbageOnSockets: whatever is written to a listener, its process lives, and so does
// the job beside it.
func TestGarbageOnSockets(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	id, hold := c.running("garbage")
	var targets [][2]string
	_ = filepath.WalkDir(c.state, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			targets = append(targets, [2]string{"unix", path})
		}
		return nil
	})
	if len(targets) < 3 {
		t.Fatalf("sockets of agent, shim and ranks: %v", targets)
	}
	b, err := os.ReadFile(filepath.Join(c.state, "up.json"))
	if err != nil {
		t.Fatal(err)
	}
	for s := range strings.SplitSeq(string(b), `"`) {
		if u, err := url.Parse(s); err == nil && u.Host != "" {
			targets = append(targets, [2]string{"tcp", u.Host})
		}
	}
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	payloads := map[string][]byte{
		"nothing":     {},
		"random":      noise,
		"zeros":       make([]byte, 1<<20),
		"all ones":    bytes.Repeat([]byte{0xff}, 1<<16),
		"huge length": {0x7f, 0xff, 0xff, 0xff, '{', '"'},
		"half frame":  {0, 0, 1, 0, '{'},
		"not JSON":    append([]byte{0, 0, 0, 4}, "nope"...),
		"deep":        append([]byte{0, 0, 0xff, 0xff}, bytes.Repeat([]byte("["), 0xffff)...),
		"wrong types": append([]byte{0, 0, 0, 40}, `{"op":7,"step":"x","generation":-1.5e99}`...),
		"http":        []byte("GET /" + strings.Repeat("a", 1<<16) + " HTTP/1.1\r\nHost: x\r\n\r\n"),
		"headers":     []byte("GET / HTTP/1.1\r\n" + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 2000) + "\r\n"),
		"nats":        []byte("CONNECT {}\r\nPUB head.register.x 10\r\n0123456789\r\nPING\r\n"),
		"nats size":   []byte("CONNECT {}\r\nPUB a 99999999999999999999\r\n"),
	}
	for _, target := range targets {
		for name, p := range payloads {
			conn, err := net.DialTimeout(target[0], target[1], 5*time.Second)
			if err != nil {
				t.Errorf("%s does not listen any more after %s: %v", target, name, err)
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
			_, _ = conn.Write(p)
			if w, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = w.CloseWrite()
			}
			_, _ = conn.Read(make([]byte, 4096))
			_ = conn.Close()
		}
	}
	for name, body := range map[string]string{
		"2 MB":      `{"name":"` + strings.Repeat("x", 2<<20) + `"}`,
		"long name": `{"command":["true"],"name":"` + strings.Repeat("x", 100_000) + `"}`,
		"big env":   `{"command":["true"],"env":{"A":"` + strings.Repeat("x", 1<<19) + `"}}`,
		"deep":      strings.Repeat("[", 100_000),
		"numbers":   `{"command":["true"],"ranks":1e308}`,
		"negative":  `{"command":["true"],"ranks":-1}`,
		"many":      `{"command":["true"],"ranks":999999999}`,
		"nul":       "{\"command\":[\"a\x00b\"]}",
	} {
		if status, answer := c.request(body); status != 0 && (status < 400 || status >= 500) {
			t.Errorf("%s: status %d: %s", name, status, clip(string(answer)))
		}
	}
	c.release(id, hold)
	c.idle()
}

// TestOwnerKilled: a job of `run` ends when its owner is killed, all of it (P6).
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	cmd := exec.CommandContext(t.Context(), troupeBin, "run", "--ranks", "2", "--cpus", "0.01", "--name", "owned", "--", c.hostile, "family")
	cmd.Env, cmd.Dir = append(c.env, "TROUPE_ADDRESS="+c.addr), c.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	var id string
	c.await("the family is there", func() (string, bool) {
		l := get[api.List[api.Job]](c, "job", "list")
		if len(l.Items) == 1 {
			id = l.Items[0].ID
		}
		n := len(c.strays())
		return fmt.Sprintf("%d processes of %s", n, id), n >= 2*7
	})
	_ = cmd.Process.Kill()
	c.ended(id, api.Stopped, 0)
	if !strings.Contains(c.events(id), "owner-gone") {
		t.Errorf("%s", c.tell(id))
	}
	c.idle()
}

// TestNoDescriptorsLeft: with no file descriptor left nothing that runs is lost, and all
// is well again when there are some.
func TestNoDescriptorsLeft(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	t.Parallel()
	c := start(t, options{})
	id, hold := c.running("descriptors")
	pid := c.daemons["up"].cmd.Process.Pid
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Skipf("prlimit: %v", err)
	}
	few := old
	few.Cur = 24
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(c.addr)
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 64 {
		if conn, err := net.DialTimeout("tcp", u.Host, time.Second); err == nil {
			conns = append(conns, conn)
		}
	}
	// Long enough for heartbeats and leases to pass by.
	refused := 0
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		cmd := exec.Command(troupeBin, "status", "--address", c.addr, "--timeout", "500ms")
		cmd.Env = c.env
		if cmd.Run() != nil {
			refused++
		}
	}
	t.Logf("%d requests were refused meanwhile", refused)
	for _, conn := range conns {
		_ = conn.Close()
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	if syscall.Kill(pid, 0) != nil || !c.daemons["up"].alive() {
		t.Fatalf("the cluster is gone:\n%s", tail(c.daemons["up"].log))
	}
	c.await("it answers again", func() (string, bool) {
		r := c.troupe("status")
		return r.String(), r.code == 0
	})
	c.release(id, hold)
	c.ended(c.submit(chain("after", "--steps", "3")), api.Succeeded, 0)
	c.idle()
}
