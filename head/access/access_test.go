package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newClock() *clock { return &clock{time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)} }

// testGuard serves four routes that answer with the role they see.
func testGuard(t *testing.T, c *clock, log io.Writer) *Guard {
	t.Helper()
	o := Options{
		Roles: func(token string) string {
			return map[string]string{"view": "viewer", "root": "admin", "odd": "wizard"}[token]
		},
		Hosts: []string{"head.example"}, Now: c.now,
		Routes: []Route{
			{Method: "GET", Pattern: "/open", Anonymous: true},
			{Method: "GET", Pattern: "/api/read/{id}", Need: Viewer},
			{Method: "POST", Pattern: "/api/write", Need: Admin},
			{Method: "POST", Pattern: "/api/panic", Need: Viewer},
			{Method: "GET", Pattern: "/ui/sign-in", Anonymous: true, Kind: Page},
			{Method: "GET", Pattern: "/ui/page", Need: Viewer, Kind: Page},
			{Method: "POST", Pattern: "/ui/sign-out", Need: Viewer, Kind: Page},
		},
	}
	if log != nil {
		o.Logger = slog.New(slog.NewJSONHandler(log, nil))
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", IdentityOf(r.Context()).Role, body)
	})
	handlers := map[string]http.Handler{
		"GET /open": echo, "GET /api/read/{id}": echo, "POST /api/write": echo, "GET /ui/page": echo,
		"POST /api/panic":   http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }),
		"GET /ui/sign-in":   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, g.SignIn(w, r)) }),
		"POST /ui/sign-out": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.SignOut(w, r) }),
	}
	for key, h := range handlers {
		method, pattern, _ := strings.Cut(key, " ")
		if err := g.Handle(method, pattern, h); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	return g
}

func answer(w http.ResponseWriter, r *http.Request, p *api.Problem) {
	if p != nil {
		WriteProblem(w, r, p)
	}
}

func send(g http.Handler, method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	r.Host = "localhost:7600"
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

func bearer(token string, more ...string) []string {
	return append([]string{"Authorization", "Bearer " + token, "Content-Type", "application/json"}, more...)
}

func TestNothingIsServedWithoutARow(t *testing.T) { // P10
	g := testGuard(t, newClock(), nil)
	h := http.NotFoundHandler()
	for _, c := range [][2]string{{"GET", "/api/new"}, {"DELETE", "/open"}, {"GET", "/open"}} {
		if err := g.Handle(c[0], c[1], h); err == nil {
			t.Errorf("%s %s was registered", c[0], c[1])
		}
	}
	for name, rows := range map[string][]Route{
		"forgotten role": {{Method: "GET", Pattern: "/x"}},
		"both":           {{Method: "GET", Pattern: "/x", Need: Viewer, Anonymous: true}},
		"twice":          {{Method: "GET", Pattern: "/x", Anonymous: true}, {Method: "GET", Pattern: "/x", Anonymous: true}},
	} {
		if _, err := New(Options{Roles: func(string) string { return "" }, Routes: rows}); err == nil {
			t.Errorf("%s: a table with this was taken", name)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a guard without tokens was made")
	}
	g, err := New(Options{Roles: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	if g.Check() == nil {
		t.Error("a table without handlers passed")
	}
}

func TestWhoMay(t *testing.T) {
	g := testGuard(t, newClock(), nil)
	for _, c := range []struct {
		name, method, target string
		headers              []string
		want                 int
		code                 string
	}{
		{"open to all", "GET", "/open", nil, 200, ""},
		{"nobody", "GET", "/api/read/1", nil, 401, CodeNoIdentity},
		{"viewer reads", "GET", "/api/read/1", bearer("view"), 200, ""},
		{"head of a read", "HEAD", "/api/read/1", bearer("view"), 200, ""},
		{"viewer writes", "POST", "/api/write", bearer("view"), 403, CodeRole},
		{"admin writes", "POST", "/api/write", bearer("root"), 200, ""},
		{"unknown token", "GET", "/api/read/1", bearer("viewx"), 401, CodeNoIdentity},
		{"role of a newer version", "GET", "/api/read/1", bearer("odd"), 401, CodeNoIdentity},
		{"empty token", "GET", "/api/read/1", bearer(""), 401, CodeNoIdentity},
		{"long token", "GET", "/api/read/1", bearer(strings.Repeat("x", 1000)), 401, CodeNoIdentity},
		{"basic", "GET", "/api/read/1", []string{"Authorization", "Basic view"}, 401, CodeNoIdentity},
		{"scheme in lower case", "GET", "/api/read/1", []string{"Authorization", "bearer view"}, 200, ""},
		{"unknown path, nobody", "GET", "/nowhere", nil, 401, CodeNoIdentity},
		{"unknown path", "GET", "/nowhere", bearer("view"), 404, CodeNoRoute},
		{"other method, nobody", "PUT", "/api/write", nil, 401, CodeNoIdentity},
		{"other method", "PUT", "/api/write", bearer("root"), 405, CodeMethod},
		{"options, nobody", "OPTIONS", "/api/write", nil, 401, CodeNoIdentity},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := send(g, c.method, c.target, nil, c.headers...)
			if w.Code != c.want {
				t.Fatalf("status %d, want %d: %s", w.Code, c.want, w.Body)
			}
			if c.code != "" {
				checkProblem(t, w, c.code)
			}
			for _, h := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", api.HeaderRequestID} {
				if w.Header().Get(h) == "" {
					t.Errorf("no %s", h)
				}
			}
		})
	}
}

func checkProblem(t *testing.T, w *httptest.ResponseRecorder, code string) {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("no problem: %v: %s", err, w.Body)
	}
	if p.Code != code || p.Status != w.Code || p.Exit == 0 || p.Detail == "" || p.Help == "" || p.Instance == "" || !strings.HasSuffix(p.Type, code) {
		t.Errorf("incomplete or wrong problem, want %s: %+v", code, p)
	}
	if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("content type %q", ct)
	}
}

func TestHostsThatAreNotOurs(t *testing.T) { // attack 22
	g := testGuard(t, newClock(), nil)
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:7600": 200, "127.0.0.1:1": 200, "127.9.9.9": 200, "[::1]:7600": 200, "localhost.": 200, "head.example:80": 200,
		"evil.example": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "10.0.0.1": 421, "": 421, "[::ffff:127.0.0.1]": 200, "0.0.0.0": 421, "[::]": 421,
	} {
		if w := send(g, "GET", "/open", nil, "Host", host); w.Code != want {
			t.Errorf("GET with host %q: %d, want %d", host, w.Code, want)
		}
		if w := send(g, "POST", "/api/write", nil, bearer("root", "Host", host)...); w.Code != want {
			t.Errorf("POST with host %q: %d, want %d", host, w.Code, want)
		}
	}
	for _, bad := range []string{"", "*", "*.example", "a/b"} {
		if _, err := newHosts([]string{bad}); err == nil {
			t.Errorf("host %q was taken", bad)
		}
	}
}

func TestOtherSites(t *testing.T) { // attacks 23, 26
	g := testGuard(t, newClock(), nil)
	for _, c := range []struct {
		header, value string
		want          int
	}{
		{"Sec-Fetch-Site", "cross-site", 403},
		{"Sec-Fetch-Site", "same-site", 403},
		{"Origin", "https://evil.example", 403},
		{"Origin", "null", 403},
		{"Sec-Fetch-Site", "same-origin", 200},
		{"Sec-Fetch-Site", "none", 200},
		{"Origin", "http://localhost:7600", 200},
	} {
		for method, target := range map[string]string{"POST": "/api/write", "GET": "/api/read/1"} {
			if w := send(g, method, target, nil, bearer("root", c.header, c.value)...); w.Code != c.want {
				t.Errorf("%s with %s %s: %d, want %d", method, c.header, c.value, w.Code, c.want)
			}
		}
		for _, method := range []string{"PUT", "PATCH", "DELETE", "TRACE", "FOO"} {
			if w := send(g, method, "/api/write", nil, bearer("root", c.header, c.value)...); c.want == 403 && w.Code != 403 {
				t.Errorf("%s with %s %s: %d", method, c.header, c.value, w.Code)
			}
		}
	}
}

func TestBodies(t *testing.T) { // attacks 25, 36
	g := testGuard(t, newClock(), nil)
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name, kind, body string
		want             int
	}{
		{"json", "application/json", `{"a":1}`, 200},
		{"json with charset", "application/json; charset=utf-8", `{"a":1}`, 200},
		{"text", "text/plain", `{"a":1}`, 415},
		{"form", "application/x-www-form-urlencoded", `a=1`, 415},
		{"parts", "multipart/form-data; boundary=x", `--x--`, 415},
		{"no type", "", `{"a":1}`, 415},
		{"broken type", ";;", `{"a":1}`, 415},
		{"as large as may be", "application/json", `"` + strings.Repeat("x", MaxBody-2) + `"`, 200},
		{"one more", "application/json", `"` + strings.Repeat("x", MaxBody-1) + `"`, 413},
		{"as deep as may be", "application/json", deep(MaxDepth), 200},
		{"one deeper", "application/json", deep(MaxDepth + 1), 400},
		{"100,000 deep", "application/json", strings.Repeat(`{"a":`, 100_000), 400},
		{"brackets in text", "application/json", `"` + deep(100) + `\"` + deep(100) + `"`, 200},
		{"nothing", "", "", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			headers := []string{"Authorization", "Bearer root"}
			if c.kind != "" {
				headers = append(headers, "Content-Type", c.kind)
			}
			// With a length and without one, as a chunked body comes.
			for _, body := range []io.Reader{strings.NewReader(c.body), io.MultiReader(strings.NewReader(c.body))} {
				w := send(g, "POST", "/api/write", body, headers...)
				if _, chunked := body.(*strings.Reader); !chunked && c.body == "" {
					continue // an empty chunked body without a type is refused, which is fine
				}
				if w.Code != c.want {
					t.Fatalf("status %d, want %d: %.200s", w.Code, c.want, w.Body)
				}
				if c.want == 200 && !strings.HasSuffix(w.Body.String(), c.body) {
					t.Error("the handler got another body")
				}
				if c.want == 413 && !strings.Contains(w.Body.String(), "1048576 bytes (api-body)") {
					t.Errorf("the limit is not named: %s", w.Body)
				}
			}
		})
	}
	if w := send(g, "POST", "/api/write", strings.NewReader("x"), bearer("root", "Content-Encoding", "gzip")...); w.Code != 415 {
		t.Errorf("a compressed body: %d", w.Code)
	}
	if w := send(g, "GET", "/api/read/1", strings.NewReader("x"), bearer("root")...); w.Code != 200 || strings.Contains(w.Body.String(), "x") {
		t.Errorf("a read with a body: %d %s", w.Code, w.Body)
	}
}

func TestSignInOnce(t *testing.T) {
	c := newClock()
	g := testGuard(t, c, nil)
	code := func() string {
		r := httptest.NewRequest("POST", "/", nil)
		code, expires, err := g.NewSignInCode(WithIdentity(r.Context(), Identity{Role: Viewer}))
		if err != nil || !expires.Equal(c.t.Add(CodeLife)) {
			t.Fatal(err, expires)
		}
		return code
	}
	first := code()
	w := send(g, "GET", SignInPath(first), nil)
	cookies := w.Result().Cookies()
	if w.Code != 200 || len(cookies) != 1 {
		t.Fatalf("%d %v %s", w.Code, cookies, w.Body)
	}
	cookie := cookies[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || cookie.MaxAge != 12*3600 || cookie.Domain != "" {
		t.Errorf("flags of the cookie: %+v", cookie)
	}
	if cookie.Name != "troupe_session_7600" || len(cookie.Value) < 43 || strings.Contains(first, cookie.Value) {
		t.Errorf("cookie %s", cookie)
	}
	page := func(cookie *http.Cookie, more ...string) int {
		return send(g, "GET", "/ui/page", nil, append([]string{"Cookie", cookie.Name + "=" + cookie.Value}, more...)...).Code
	}
	if got := page(cookie); got != 200 {
		t.Errorf("with the cookie: %d", got)
	}
	if got := page(cookie, "Authorization", "Bearer wrong"); got != 401 {
		t.Errorf("a wrong token was saved by the cookie: %d", got)
	}
	if got := send(g, "POST", "/api/write", nil, "Cookie", cookie.Name+"="+cookie.Value).Code; got != 403 {
		t.Errorf("a viewer's session writes: %d", got)
	}
	if w := send(g, "GET", SignInPath(first), nil); w.Code != 401 || len(w.Result().Cookies()) != 0 {
		t.Errorf("the code opened twice: %d", w.Code)
	}
	for _, bad := range []string{"", "x", strings.Repeat("y", 600), first[:42] + "A"} {
		if w := send(g, "GET", SignInPath(bad), nil); w.Code != 401 {
			t.Errorf("code %.10q: %d", bad, w.Code)
		}
	}
	late := code()
	c.t = c.t.Add(CodeLife)
	if w := send(g, "GET", SignInPath(late), nil); w.Code != 401 {
		t.Errorf("a code after its minute: %d", w.Code)
	}
	form := []string{"Cookie", cookie.Name + "=" + cookie.Value, "Content-Type", "application/x-www-form-urlencoded"}
	if w := send(g, "POST", "/ui/sign-out", nil, append(form, "Sec-Fetch-Site", "cross-site")...); w.Code != 403 || page(cookie) != 200 {
		t.Errorf("another site signed out: %d", w.Code)
	}
	out := send(g, "POST", "/ui/sign-out", nil, form...)
	if out.Code != 200 || out.Result().Cookies()[0].MaxAge >= 0 || page(cookie) != 401 {
		t.Errorf("after signing out: %d, page %d", out.Code, page(cookie))
	}
	w = send(g, "GET", SignInPath(code()), nil)
	cookie = w.Result().Cookies()[0]
	c.t = c.t.Add(SessionLife)
	if got := page(cookie); got != 401 {
		t.Errorf("after twelve hours: %d", got)
	}
}

func TestCookieOverTLS(t *testing.T) {
	g := testGuard(t, newClock(), nil)
	r := httptest.NewRequest("GET", "https://localhost:7600/", nil)
	code, _, err := g.NewSignInCode(WithIdentity(r.Context(), Identity{Role: Admin}))
	if err != nil {
		t.Fatal(err)
	}
	r = httptest.NewRequest("GET", "https://localhost:7600"+SignInPath(code), nil)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if cookie := w.Result().Cookies()[0]; !cookie.Secure || !strings.HasPrefix(cookie.Name, "__Host-") {
		t.Errorf("%s", cookie)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		s := newSessions(c.now, &counter{})
		var last string
		for range rapid.IntRange(0, 1500).Draw(t, "sign-ins") {
			c.t = c.t.Add(time.Second)
			code, _, ok, err := s.newCode(Admin)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if last, _, ok, err = s.redeem(code); err != nil || !ok {
				t.Fatal(ok, err)
			}
			if len(s.active) > MaxSessions || s.role(last) != Admin {
				t.Fatalf("%d sessions, newest is %s", len(s.active), s.role(last))
			}
		}
		for i := range 2 * MaxCodes {
			if _, _, ok, _ := s.newCode(Viewer); ok != (i < MaxCodes) {
				t.Fatalf("code %d: %v", i, ok)
			}
		}
	})
}

// counter is a source of bytes that never repeats.
type counter struct{ n uint64 }

func (c *counter) Read(p []byte) (int, error) {
	c.n++
	return copy(p, fmt.Sprintf("%0*d", len(p), c.n)), nil
}

func TestRates(t *testing.T) {
	c := newClock()
	g := testGuard(t, c, nil)
	got := map[int]int{}
	for range refusedBurst + 50 {
		got[send(g, "GET", "/api/read/1", nil, bearer("guess")...).Code]++
	}
	if got[401] != refusedBurst || got[429] != 50 {
		t.Errorf("answers to guesses: %v", got)
	}
	w := send(g, "GET", "/api/read/1", nil, bearer("guess")...)
	if w.Header().Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", w.Header().Get("Retry-After"))
	}
	if w := send(g, "GET", "/api/read/1", nil, bearer("view")...); w.Code != 200 {
		t.Errorf("a good token suffers for the guesses: %d", w.Code)
	}
	c.t = c.t.Add(time.Second)
	if w := send(g, "GET", "/api/read/1", nil, bearer("guess")...); w.Code != 401 {
		t.Errorf("after a second: %d", w.Code)
	}
	for i := range 3 * maxAddresses {
		g.refused.take(fmt.Sprint(i))
	}
	if n := len(g.refused.buckets); n > maxAddresses {
		t.Errorf("%d addresses are kept", n)
	}
}

func TestStreamsBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewStreams(10, 4)
		var open []func()
		held := map[string]int{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "close") {
				open[0]()
				open = open[1:]
				continue
			}
			who := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "who")
			room := len(open) < 10 && held[who] < 4
			done, ok := s.Open(who)
			if ok != room {
				t.Fatalf("open %d, %s holds %d: %v", len(open), who, held[who], ok)
			}
			if ok {
				held[who]++
				open = append(open, func() { held[who]--; done() })
			}
			if s.Count() != len(open) {
				t.Fatalf("counted %d, open %d", s.Count(), len(open))
			}
		}
	})
}

func TestADefectIsAnAnswer(t *testing.T) {
	var log bytes.Buffer
	g := testGuard(t, newClock(), &log)
	w := send(g, "POST", "/api/panic", nil, bearer("root")...)
	if w.Code != 500 {
		t.Fatal(w.Code)
	}
	checkProblem(t, w, CodeDefect)
	if strings.Contains(w.Body.String(), "boom") || !strings.Contains(log.String(), "boom") {
		t.Errorf("the cause belongs in the log and nowhere else: %s / %s", w.Body, log.String())
	}
}

func TestAuditHasNoSecret(t *testing.T) {
	var log bytes.Buffer
	g := testGuard(t, newClock(), &log)
	send(g, "POST", "/api/write", strings.NewReader(`{"canary":1}`), bearer("root")...)
	send(g, "POST", "/api/write", nil, bearer("view")...)
	send(g, "POST", "/api/write", nil, bearer("no-such-canary")...)
	send(g, "GET", SignInPath("canary-code"), nil)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %s", len(lines), log.String())
	}
	for i, want := range []string{`"status":200`, `"status":403`, `"status":401`} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], `"remote"`) {
			t.Errorf("line %d: %s", i, lines[i])
		}
	}
	if strings.Contains(log.String(), "canary") || strings.Contains(log.String(), "Bearer") {
		t.Errorf("a secret is in the log: %s", log.String())
	}
}

func TestConnectionsAreBounded(t *testing.T) { // attack 37
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Limit(ln, 100, 3)
	defer l.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var served []net.Conn
	for range 3 {
		dial()
		served = append(served, <-accepted)
	}
	over := dial()
	_ = over.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := over.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Fatalf("the fourth connection of nobody was kept: %v", err)
	}
	served[0].(*conn).authenticated()
	served[0].(*conn).authenticated()
	dial()
	served = append(served, <-accepted)
	over = dial()
	_ = over.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := over.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Fatalf("one identity freed two places: %v", err)
	}
	for _, c := range served {
		c.Close()
		c.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != 0 || len(l.nobody) != 0 {
		t.Errorf("after all were closed: %d open, %v", l.open, l.nobody)
	}
}

func TestRoles(t *testing.T) {
	for r := Viewer; r <= Admin; r++ {
		if ParseRole(r.String()) != r {
			t.Errorf("%d %s", r, r)
		}
	}
	for _, s := range []string{"", "none", "Admin", "admin ", "root"} {
		if ParseRole(s) != None {
			t.Errorf("%q grants %s", s, ParseRole(s))
		}
	}
}
