package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// What a head answers of a small group, and where: the same bytes go back and forth here.
const (
	groupsPath  = "/api/v1/placement-groups"
	madeBytes   = 360
	removeBytes = 404
)

// carried is what HTTP takes by itself: the requests of n cycles, with nothing done for them.
type carried struct {
	Create  []float64 `json:"create"` // milliseconds
	Seconds float64   `json:"seconds"`
	CPU     float64   `json:"cpu"`    // seconds that the client computed
	Server  float64   `json:"server"` // and the server
}

// overHTTP has clients send the requests of n cycles, as large as ours and answered as
// largely, to a plain server in a process of its own that does nothing for them. Neither
// side looks at what it gets: this is what net/http takes, and what is left for a head.
func overHTTP(n, clients int, spec api.GroupSpec) (out carried, err error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return out, err
	}
	server, address, err := startServer()
	if err != nil {
		return out, err
	}
	defer func() {
		err = errors.Join(err, server.end())
		out.Server = server.computed()
	}()
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	url := "http://" + address + groupsPath
	var mu sync.Mutex
	var failed error
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	was, begin := cpu(), time.Now()
	for range clients {
		wg.Go(func() {
			var mine []float64
			var err error
			for err == nil && left.Add(-1) >= 0 {
				start := time.Now()
				if err = send(c, http.MethodPost, url, body); err == nil {
					mine = append(mine, ms(time.Since(start)))
					err = send(c, http.MethodDelete, url+"/pg-12345", nil)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			out.Create = append(out.Create, mine...)
		})
	}
	wg.Wait()
	out.Seconds, out.CPU = time.Since(begin).Seconds(), cpu()-was
	return out, failed
}

// send sends one request with the headers that the SDK sends.
func send(c *http.Client, method, url string, body []byte) error {
	r, err := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 43))
	r.Header.Set("User-Agent", "troupe-go")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(api.HeaderIdempotencyKey, strings.Repeat("k", 32))
		r.Header.Set(api.HeaderIdempotencyAge, "0s")
	}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

// serve answers on a port of its own, whose address it prints, until standard input ends.
func serve() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Println(ln.Addr()); err != nil {
		return err
	}
	made, removed := filler(madeBytes), filler(removeBytes)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		h := w.Header()
		access.SecurityHeaders(h)
		h.Set("Content-Type", "application/json")
		h.Set(api.HeaderRequestID, "0123456789abcdef")
		h.Set(api.HeaderIndex, "100000")
		answer := removed
		if r.Method == http.MethodPost {
			h.Set("Location", groupsPath+"/pg-12345")
			w.WriteHeader(http.StatusCreated)
			answer = made
		}
		_, _ = w.Write(answer) // a client that is gone needs none
	})}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func filler(n int) []byte { return bytes.Repeat([]byte{'x'}, n) }

// child is the process that serves.
type child struct {
	*exec.Cmd
	stdin io.Closer
}

func startServer() (*child, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	c := &child{Cmd: exec.CommandContext(context.Background(), self, "serve")}
	c.Stderr = os.Stderr
	if c.stdin, err = c.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := c.Start(); err != nil {
		return nil, "", err
	}
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		return nil, "", errors.Join(fmt.Errorf("the server said no address: %w", err), c.end())
	}
	return c, address, nil
}

func (c *child) end() error { return errors.Join(c.stdin.Close(), c.Wait()) }

// computed is how many seconds it computed; it has ended.
func (c *child) computed() float64 {
	if u, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok {
		return computed(u)
	}
	return 0
}
