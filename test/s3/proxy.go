package s3

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// Fault is one way to break requests.
type Fault struct {
	Method string // empty: any
	Match  string // part of path or query; empty: any
	Nth    int    // only the nth matching request, from 1; 0: each
	On     bool   // with Nth: that request and every later one

	Status  int           // answer with it, an S3 error of Code in the body
	Code    string        // with Status
	Reset   bool          // close the connection without asking the server
	Lose    bool          // ask the server, then close the connection
	Tear    bool          // give the server half of the request's body, then close both connections
	CutBody bool          // give half of the answer's body, then close
	Alter   bool          // flip one bit of the answer's body
	Spoil   bool          // flip one bit of the request's body
	Delay   time.Duration // before anything
	Before  func()        // called first, as to kill somebody
}

// Proxy stands before a server and speaks plain HTTP. The Host header is the server's, so
// that signatures hold.
type Proxy struct {
	Endpoint string
	Requests atomic.Int64
	Hits     atomic.Int64 // faults that struck

	mu     sync.Mutex
	faults []*armed
	listen func(*http.Request)
}

type armed struct {
	Fault
	seen int
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	p := &Proxy{}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, client, s.Endpoint) })
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	p.Endpoint = srv.URL
	return p
}

// Inject arms a fault until remove is called.
func (p *Proxy) Inject(f Fault) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &armed{Fault: f}
	p.faults = append(p.faults, a)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, o := range p.faults {
			if o == a {
				p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
				return
			}
		}
	}
}

// Listen has every request told to f, one at a time, until stop is called.
func (p *Proxy) Listen(f func(*http.Request)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listen = f
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.listen = nil
	}
}

func (p *Proxy) strike(r *http.Request) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil {
		p.listen(r)
	}
	var hit *Fault
	for _, a := range p.faults {
		if a.Method != "" && a.Method != r.Method || !strings.Contains(r.URL.Path+"?"+r.URL.RawQuery, a.Match) {
			continue
		}
		a.seen++
		if hit == nil && (a.Nth == 0 || a.Nth == a.seen || a.On && a.seen > a.Nth) {
			hit = &a.Fault
		}
	}
	if hit != nil {
		p.Hits.Add(1)
	}
	return hit
}

var errTorn = errors.New("torn on the way, as ordered")

func closeConn(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset and no orderly end
	}
	_ = c.Close()
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, client *http.Client, server string) {
	p.Requests.Add(1)
	f := p.strike(r)
	if f == nil {
		f = &Fault{}
	}
	if f.Before != nil {
		f.Before()
	}
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		}
	}
	if f.Reset {
		closeConn(w)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if f.Status != 0 {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, "<Error><Code>"+f.Code+"</Code><Message>as ordered</Message></Error>")
		return
	}
	if f.Spoil && len(body) > 0 {
		body[len(body)/2] ^= 1
	}
	sent := io.Reader(bytes.NewReader(body))
	if f.Tear {
		sent = io.MultiReader(bytes.NewReader(body[:len(body)/2]), iotest.ErrReader(errTorn))
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, server+r.URL.RequestURI(), sent)
	if err != nil {
		return
	}
	out.Header = r.Header.Clone()
	out.Host, out.ContentLength = r.Host, int64(len(body))
	res, err := client.Do(out)
	if err != nil {
		closeConn(w)
		return
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || f.Lose {
		closeConn(w)
		return
	}
	if f.Alter && len(answer) > 0 {
		answer[len(answer)/2] ^= 1
	}
	maps.Copy(w.Header(), res.Header)
	if r.Method != http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	}
	w.WriteHeader(res.StatusCode)
	if f.CutBody {
		_, _ = w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(w).Flush()
		closeConn(w)
		return
	}
	_, _ = w.Write(answer)
}
