package cli

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// cutter is a TCP proxy that ends every connection after so many bytes of answers, and
// that can be closed for a while.
type cutter struct {
	t      *testing.T
	target string
	after  int64
	mu     sync.Mutex
	l      net.Listener
	addr   string
	cuts   int
	conns  map[net.Conn]bool
}

func newCutter(t *testing.T, target string, after int64) *cutter {
	t.Helper()
	c := &cutter{t: t, target: target, after: after, addr: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	c.open()
	t.Cleanup(c.close)
	return c
}

func (c *cutter) open() {
	c.t.Helper()
	var l net.Listener
	eventually(c.t, "the proxy cannot listen", func() (err error) {
		l, err = net.Listen("tcp", c.addr)
		return err
	})
	c.mu.Lock()
	c.l, c.addr = l, l.Addr().String()
	c.mu.Unlock()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.pass(client)
		}
	}()
}

// close refuses new connections and cuts those that are.
func (c *cutter) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.l.Close()
	for conn := range c.conns {
		_ = conn.Close()
	}
}

func (c *cutter) pass(client net.Conn) {
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		_ = client.Close()
		return
	}
	c.mu.Lock()
	c.conns[client], c.conns[server] = true, true
	c.mu.Unlock()
	go func() { _, _ = io.Copy(server, client) }()
	if n, _ := io.CopyN(client, server, c.after); n == c.after {
		c.mu.Lock()
		c.cuts++
		c.mu.Unlock()
	}
	_ = client.Close()
	_ = server.Close()
	c.mu.Lock()
	delete(c.conns, client)
	delete(c.conns, server)
	c.mu.Unlock()
}

func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

// A follower whose connection is cut again and again, and refused for a while, prints
// every line once, in order, and the job's code.
func TestFollowThroughCuts(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	token := h.token()
	proxy := newCutter(t, strings.TrimPrefix(h.client().Address(), "http://"), 20_000)
	h.want(0, "run", "--detach", "--name", "talker", "--max-restarts", "0", "--", "sh", "-c",
		`seq 1 20000; while ! test -e go; do sleep 0.05; done; seq 20001 40000; exit 11`)
	direct := h.env
	h.env = append(h.env, "TROUPE_ADDRESS="+proxy.addr, "TROUPE_TOKEN="+token)
	r := h.start("job", "logs", "-f", "talker-", "--prefix", "none")
	h.env = direct
	r.says(`^20000$`)
	proxy.close()
	h.write("go", "")
	// Everything is written while nobody can be reached.
	eventually(t, "the job has not ended", func() error {
		if j := h.job("talker-"); !j.State.Terminal() {
			return fmt.Errorf("it is %s", j.State)
		}
		return nil
	})
	proxy.open()
	end := r.wait()
	var want strings.Builder
	for i := range 40000 {
		_, _ = fmt.Fprintln(&want, i+1)
	}
	if end.code != 11 || end.out != want.String() {
		t.Errorf("exit %d, %d bytes of %d\n%s", end.code, len(end.out), want.Len(), end.errout)
	}
	if proxy.count() < 5 {
		t.Errorf("only %d connections were cut: the test proves nothing", proxy.count())
	}
}

// A head that does not come back ends the follower with the code for that.
func TestFollowGivesUp(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	token := h.token()
	proxy := newCutter(t, strings.TrimPrefix(h.client().Address(), "http://"), 1<<40)
	h.want(0, "run", "--detach", "--name", "talker", "--", "sh", "-c", `echo one; sleep 1000`)
	direct := h.env
	h.env = append(h.env, "TROUPE_ADDRESS="+proxy.addr, "TROUPE_TOKEN="+token)
	r := h.start("job", "logs", "-f", "talker-", "--timeout", "3s")
	r.says(`^\[0\] one$`)
	proxy.close()
	if end := r.wait(); end.code != api.ExitUnreachable && end.code != api.ExitTimeout {
		t.Errorf("%v", end)
	}
	h.env = direct
	if j := h.job("talker-"); j.State != api.Running {
		t.Errorf("the job is %s", j.State)
	}
}

// The address that `troupe ui` prints signs in once, and the page shows the job.
func TestPageSignsIn(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up("--name", "box")
	h.want(0, "run", "--name", "shown", "--", "true")
	address := strings.TrimSpace(h.want(0, "ui", "-q").out)
	browser := func() *http.Client {
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Client{Jar: jar, Timeout: patience}
	}
	get := func(c *http.Client, address string) (int, string) {
		t.Helper()
		resp, err := c.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	c := browser()
	code, body := get(c, address)
	if code == http.StatusOK && strings.Contains(body, `method="post"`) && !strings.Contains(body, "shown-") {
		// The page asks for a click, so that a preview does not use the address up.
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.PostForm(address, u.Query())
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	base := address[:strings.Index(address, "/ui")]
	code, body = get(c, base+"/ui")
	if code != http.StatusOK || !strings.Contains(body, "box") {
		t.Fatalf("%d\n%.2000s", code, body)
	}
	if _, jobs := get(c, base+"/ui/jobs"); !strings.Contains(body+jobs, "shown-") {
		t.Errorf("the job is on no page:\n%.3000s\n%.3000s", body, jobs)
	}
	other := browser()
	if _, body := get(other, address); strings.Contains(body, "shown-") {
		t.Error("the address opened the page twice")
	}
	if code, body := get(browser(), base+"/ui/jobs"); strings.Contains(body, "shown-") {
		t.Errorf("the page is open to anybody: %d", code)
	}
}

// What a checkpoint is worth is seen by hand: listed, verified, damaged, and not used.
func TestCheckpointsByHand(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	python := h.python()
	script, err := filepath.Abs("testdata/saver.py")
	if err != nil {
		t.Fatal(err)
	}
	h.up()
	run := []string{"run", "--name", "saver", "--ranks", "2", "--checkpoint-every", "5steps", "--env", "PYTHONPATH", "--", python, script}
	if r := h.want(0, append(run, "20", "12")...); !strings.Contains(r.errout, "attempt 0 failed: rank") || !strings.Contains(r.errout, "attempt 1 starts from step 10") ||
		strings.Count(r.out, "attempt 1 begins after step 10") != 2 {
		t.Fatalf("%v", r)
	}
	if r := h.want(0, "checkpoint", "verify", "saver"); r.out != "saver step 20: whole (2 files, 24 B)\n" {
		t.Errorf("%v", r)
	}
	h.want(66, "checkpoint", "verify", "saver", "12")
	h.want(64, "checkpoint", "verify", "saver", "twelve")
	var l api.List[api.Checkpoint]
	if err := one(h.want(0, "checkpoint", "list", "saver", "-o", "json").out, &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 3 || l.Items[0].Step != 20 || l.Items[0].State != "committed" {
		t.Fatalf("%+v", l.Items)
	}
	damaged := filepath.Join(l.Items[0].Dir, "rank-1", "count.json")
	if err := os.WriteFile(damaged, []byte(`{"step": 90}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.want(1, "checkpoint", "verify", "saver", "20"); !strings.Contains(r.out, "DAMAGED") || !strings.Contains(r.out, "rank-1/count.json") {
		t.Errorf("%v", r)
	}
	if err := os.Truncate(damaged, 3); err != nil {
		t.Fatal(err)
	}
	h.want(1, "checkpoint", "verify", "saver", "20", "-q")
	// The next job of the run finds the damage, says so, and goes back.
	r := h.want(0, append(run, "22")...)
	if strings.Count(r.out, "begins after step 15") != 2 {
		t.Errorf("%v", r)
	}
	events := h.want(0, "events", "--all").out
	for _, want := range []string{"restore-damaged", "rolled-back"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event %s in\n%s", want, events)
		}
	}
}
