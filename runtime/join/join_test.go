package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// cluster is a head that can be joined, on loopback.
type cluster struct {
	*Server
	a       *trust.Authority
	address string
	log     *bytes.Buffer
	config  *tls.Config
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func start(t *testing.T, key Key, admit func(context.Context, Admitted) (any, error)) *cluster {
	t.Helper()
	a, err := trust.OpenAuthority(filepath.Join(t.TempDir(), "ca"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	id, err := trust.NewListener(a, trust.RoleAPI, trust.Names{}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{a: a, log: &bytes.Buffer{}}
	c.Server = &Server{
		Key: key, Authority: a, BusPort: func() int { return 7602 }, Admit: admit, Now: time.Now,
		Logger: slog.New(slog.NewTextHandler(&locked{w: c.log}, nil)),
	}
	c.config = trust.ServerTLS(a.Root(), id.Certificate, "", time.Now)
	c.config.NextProtos = []string{Protocol}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = ln.Addr().String()
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				tc := tls.Server(raw, c.config)
				if tc.Handshake() != nil {
					raw.Close()
					return
				}
				c.Serve(tc)
			})
		}
	})
	return c
}

func newKey(t *testing.T) Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func request(t *testing.T, address string, key Key) Request {
	t.Helper()
	i, err := trust.OpenIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Request{Address: address, Key: key, Identity: i, Now: time.Now}
}

func TestJoin(t *testing.T) {
	key := newKey(t)
	c := start(t, key, func(_ context.Context, a Admitted) (any, error) {
		return map[string]string{"for": string(a.Purpose), "node": a.Node}, nil
	})
	r := request(t, c.address, key)
	r.Purpose = map[string]int{"ranks": 4}
	j, err := Ask(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.Identity.Node()
	if err != nil {
		t.Fatal(err)
	}
	var answer map[string]string
	if err := json.Unmarshal(j.Answer, &answer); err != nil {
		t.Fatal(err)
	}
	if j.Node != want || answer["node"] != want || answer["for"] != `{"ranks":4}` || j.BusPort != 7602 || j.Root != c.a.Digest() {
		t.Errorf("joined %+v, answer %v; want node %s", j, answer, want)
	}
	if !j.Local.IsLoopback() || !j.Remote.IsLoopback() || !r.Identity.Valid(time.Now()) {
		t.Errorf("from %s to %s, certificate valid: %v", j.Local, j.Remote, r.Identity.Valid(time.Now()))
	}
	if granted, denied := c.Counts(); granted != 1 || denied != 0 {
		t.Errorf("counted %d granted, %d denied", granted, denied)
	}
}

func TestWrongKey(t *testing.T) {
	c := start(t, newKey(t), nil)
	for n := range 2 {
		if _, err := Ask(t.Context(), request(t, c.address, newKey(t))); !errors.Is(err, ErrDenied) {
			t.Fatalf("with another key: %v", err)
		}
		if granted, denied := c.Counts(); granted != 0 || denied != int64(n+1) {
			t.Errorf("counted %d granted, %d denied", granted, denied)
		}
	}
	if text := c.log.String(); strings.Count(text, "join refused") != 2 || !strings.Contains(text, "refused_so_far=2") {
		t.Errorf("the log says\n%s", text)
	}
}

// One bit of the key is as wrong as all of them, and guesses are slowed down.
func TestGuesses(t *testing.T) {
	key := newKey(t)
	now := time.Now()
	var mu sync.Mutex
	c := start(t, key, nil)
	c.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	for n := range maxWrong + 1 {
		guess := key
		guess.secret[n] ^= 1
		if _, err := Ask(t.Context(), request(t, c.address, guess)); !errors.Is(err, ErrDenied) {
			t.Fatalf("guess %d: %v", n, err)
		}
	}
	if _, err := Ask(t.Context(), request(t, c.address, key)); err == nil || errors.Is(err, ErrDenied) {
		t.Errorf("after %d wrong proofs: %v; want no answer at all", maxWrong+1, err)
	}
	mu.Lock()
	now = now.Add(wrongRest)
	mu.Unlock()
	if _, err := Ask(t.Context(), request(t, c.address, key)); err != nil {
		t.Errorf("with the key, after the rest: %v", err)
	}
}

// Somebody in the middle, with an authority of his own, passes everything on: both sides
// take the digest of the root that they see into their proofs, so neither accepts.
func TestManInTheMiddle(t *testing.T) {
	key := newKey(t)
	c := start(t, key, nil)
	m := start(t, newKey(t), nil) // for its authority and listener's configuration
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		victim := tls.Server(raw, m.config)
		real, err := tls.Dial("tcp", c.address, &tls.Config{NextProtos: []string{Protocol}, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer real.Close()
		go func() { _, _ = io.Copy(real, victim); real.Close() }()
		_, _ = io.Copy(victim, real)
	}()
	_, err = Ask(t.Context(), request(t, ln.Addr().String(), key))
	ln.Close()
	<-done
	if !errors.Is(err, ErrDenied) && !errors.Is(err, ErrImpostor) {
		t.Errorf("through a man in the middle: %v", err)
	}
	if granted, denied := c.Counts(); granted != 0 || denied != 1 {
		t.Errorf("the head counted %d granted, %d denied", granted, denied)
	}
}

// A head that does not have the key, and says that all is well, is found out.
func TestImpostor(t *testing.T) {
	m := start(t, newKey(t), nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, answer := range map[string]func(own, theirs []byte, p proofMessage) proofMessage{
		"another key": func(own, theirs []byte, _ proofMessage) proofMessage {
			return proofMessage{Proof: m.Key.proof(head, theirs, own, m.a.Digest())}
		},
		"their own proof sent back": func(_, _ []byte, p proofMessage) proofMessage { return p },
		"nothing":                   func(_, _ []byte, _ proofMessage) proofMessage { return proofMessage{} },
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				raw, err := ln.Accept()
				if err != nil {
					return
				}
				defer raw.Close()
				c := tls.Server(raw, m.config)
				var h helloMessage
				var p proofMessage
				own := make([]byte, nonceSize)
				if readFrame(c, maxHello, &h) == nil && writeFrame(c, maxHello, helloMessage{own}) == nil && readFrame(c, maxHello, &p) == nil {
					_ = writeFrame(c, maxHello, answer(own, h.Nonce, p))
				}
				_, _ = io.Copy(io.Discard, c) // what it asks for next must not come
			}()
			r := request(t, ln.Addr().String(), newKey(t))
			if _, err := Ask(t.Context(), r); !errors.Is(err, ErrImpostor) {
				t.Errorf("%v", err)
			}
			<-done
			if r.Identity.Valid(time.Now()) {
				t.Error("a certificate was taken from it")
			}
		})
	}
}

// dial speaks the protocol by hand.
func dial(t *testing.T, address string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{NextProtos: []string{Protocol}, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A proof that was good on one connection is worth nothing on the next.
func TestReplay(t *testing.T) {
	key := newKey(t)
	c := start(t, key, nil)
	nonce := make([]byte, nonceSize)
	var proof proofMessage
	for n, want := range []bool{true, false} {
		conn := dial(t, c.address)
		var h helloMessage
		if err := errors.Join(writeFrame(conn, maxHello, helloMessage{nonce}), readFrame(conn, maxHello, &h)); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			proof.Proof = key.proof(joiner, nonce, h.Nonce, c.a.Digest())
		}
		var answer proofMessage
		if err := errors.Join(writeFrame(conn, maxHello, proof), readFrame(conn, maxHello, &answer)); err != nil {
			t.Fatal(err)
		}
		if taken := !answer.Denied && len(answer.Proof) > 0; taken != want {
			t.Errorf("time %d: taken %v", n, taken)
		}
	}
}

// Strangers' input is bounded in length and time, and answered by nothing.
func TestBadInput(t *testing.T) {
	c := start(t, newKey(t), nil)
	frame := func(b string) []byte { return append([]byte{0, 0, byte(len(b) >> 8), byte(len(b))}, b...) }
	for name, in := range map[string][]byte{
		"oversize":        {0x7f, 0xff, 0xff, 0xff, 1},
		"over the bound":  {0, 0, 4, 1},
		"no JSON":         frame("secret"),
		"a short nonce":   frame(`{"nonce":"AAAA"}`),
		"another message": frame(`{"proof":"AAAA"}`),
		"HTTP":            []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, c.address)
			if _, err := conn.Write(in); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(conn); err == nil && len(b) > 0 {
				t.Errorf("it answered %q", b)
			}
		})
	}
	t.Run("slow", func(t *testing.T) {
		begin := time.Now()
		conn := dial(t, c.address)
		if b, err := io.ReadAll(conn); len(b) > 0 {
			t.Errorf("it answered %q, %v", b, err)
		}
		if d := time.Since(begin); d < proveTime/2 {
			t.Errorf("cut after %s", d)
		}
	})
	if granted, denied := c.Counts(); granted != 0 || denied != 0 {
		t.Errorf("counted %d granted, %d denied", granted, denied)
	}
}

// A host with the key that is not wanted hears why; its certificate is not sent.
func TestRefusal(t *testing.T) {
	key := newKey(t)
	c := start(t, key, func(context.Context, Admitted) (any, error) {
		return nil, &Refused{Text: "another run", Exit: 73}
	})
	r := request(t, c.address, key)
	_, err := Ask(t.Context(), r)
	if no, ok := errors.AsType[*Refused](err); !ok || no.Text != "another run" || no.Exit != 73 {
		t.Errorf("%v", err)
	}
	if r.Identity.Valid(time.Now()) {
		t.Error("it got a certificate all the same")
	}
}

// What is no head is told apart from one that does not answer.
func TestNotAHead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("INFO {\"server\":\"plain\"}\r\n"))
			c.Close()
		}
	}()
	if _, err := Ask(t.Context(), request(t, ln.Addr().String(), newKey(t))); !errors.Is(err, ErrNotHead) {
		t.Errorf("a plain server: %v", err)
	}
	ln.Close()
	if _, err := Ask(t.Context(), request(t, ln.Addr().String(), newKey(t))); err == nil || errors.Is(err, ErrNotHead) {
		t.Errorf("nobody: %v", err)
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "troupe", "join.key")
	if err := WriteKey(path); err != nil {
		t.Fatal(err)
	}
	k, err := ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if err := WriteKey(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if again, err := ReadKey(path); err != nil || again != k {
		t.Errorf("it was changed: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path); !errors.Is(err, trust.ErrOpenKey) {
		t.Errorf("readable by all: %v", err)
	}
	for _, bad := range []string{"", "abc", strings.Repeat("0", 63), strings.Repeat("x", 64)} {
		if _, err := ParseKey(bad); !errors.Is(err, ErrKey) || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", k)
	if text := out.String() + k.String(); strings.Contains(text, "secret") || len(text) > 120 {
		t.Errorf("a key prints as %q", text)
	}
}
