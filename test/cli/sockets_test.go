package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// garbage is what is sent to every socket: noise, framing that lies, text that never
// ends a line, and the protocols of the others.
func garbage() map[string][]byte {
	noise := make([]byte, 64<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	frame := func(n uint32, body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, n), body...)
	}
	return map[string][]byte{
		"nothing":        nil,
		"noise":          noise,
		"zeros":          make([]byte, 4096),
		"long line":      bytes.Repeat([]byte("A"), 4<<20),
		"http":           []byte("GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n"),
		"http headers":   []byte("GET / HTTP/1.1\r\n" + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 2000)),
		"http body":      []byte("POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n{"),
		"nats":           []byte("CONNECT {\"user\":\"node/n0\",\"pass\":\"x\"}\r\nPING\r\nPUB head.register.n0 4\r\nabcd\r\n"),
		"nats oversized": append([]byte("PUB a 99999999\r\n"), bytes.Repeat([]byte("x"), 2<<20)...),
		"nats subject":   []byte("SUB " + strings.Repeat("a.", 5000) + " 1\r\n"),
		"frame too long": frame(1<<31, "{}"),
		"frame empty":    frame(0, ""),
		"frame no json":  frame(5, "hello"),
		"frame deep":     frame(60000, strings.Repeat("[", 60000)),
		"frame unknown":  frame(15, `{"type":"dance"`),
		"frame of start": frame(32, `{"type":"start","attempt":"now"}`),
		"frame cut":      frame(1000, `{"type":`),
		"bad utf8":       frame(14, "{\"type\":\"\xff\xfe\"}"),
	}
}

// throw sends bytes and reads until the other side closes, or is silent for a moment.
func throw(network, address string, data []byte) error {
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = c.Write(data) // it may hang up before it has heard everything
	_, _ = io.Copy(io.Discard, c)
	return nil
}

// Whatever is sent to a socket is refused, and the process behind it lives and works.
func TestGarbageOnEverySocket(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	state := shortDir(t) // so that sockets of allocations lie below it
	h.up("--state", state)
	var up struct {
		PID      int
		API, Bus string
	}
	b, err := os.ReadFile(filepath.Join(state, "up.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &up); err != nil {
		t.Fatal(err)
	}
	h.want(0, "run", "--detach", "--name", "victim", "--", "sh", "-c", "echo ready; while ! test -e go; do sleep 0.1; done; echo done")
	h.want(0, "job", "wait", "victim-", "--for", "running")
	sockets := map[string]string{strings.TrimPrefix(up.API, "http://"): "tcp", strings.TrimPrefix(up.Bus, "nats://"): "tcp"}
	err = filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSocket != 0 {
			sockets[path] = "unix"
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := fmt.Sprint(sockets)
	for _, want := range []string{"agent.sock", "rank.sock"} {
		if !strings.Contains(names, want) {
			t.Errorf("no %s among %v", want, names)
		}
	}
	before := h.job("victim-")
	for address, network := range sockets {
		for name, data := range garbage() {
			if err := throw(network, address, data); err != nil {
				t.Fatalf("%s after %s: %v", address, name, err)
			}
		}
		if r := h.troupe("status"); r.code != 0 {
			t.Fatalf("after garbage on %s: %v", address, r)
		}
	}
	after := h.job("victim-")
	if after.State != before.State || after.Attempt != 0 || after.Attempts[0].Ranks[0].PID != before.Attempts[0].Ranks[0].PID {
		t.Errorf("the job was touched: %+v", after)
	}
	h.write("go", "")
	if r := h.want(0, "job", "logs", "-f", "victim-", "--prefix", "none"); r.out != "ready\ndone\n" {
		t.Errorf("%v", r)
	}
	h.want(0, "run", "--", "true")
	var now struct{ PID int }
	if b, err = os.ReadFile(filepath.Join(state, "up.json")); err != nil || json.Unmarshal(b, &now) != nil || now.PID != up.PID {
		t.Errorf("the cluster is another process now: %s, was %d", b, up.PID)
	}
}

// shortDir is a folder whose name leaves room for the address of a Unix socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		endAll(t, dir)
		_ = os.RemoveAll(dir)
	})
	return dir
}
