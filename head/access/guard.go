package access

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Options of a Guard. Roles is required.
type Options struct {
	// Roles answers for a bearer token: a role's name, or "" for a token that is
	// unknown, expired or revoked. It compares digests, not tokens.
	Roles func(token string) string
	// Restored reports whether Roles knows everything yet; until then requests that
	// need a role are told to come again, not that they are nobody. Nil: always.
	Restored func() bool
	Hosts    []string // that requests may name besides loopback names and addresses
	Logger   *slog.Logger
	Now      func() time.Time // default time.Now
	Rand     io.Reader        // default crypto/rand
	// ErrorPage answers a problem of a page; default: as JSON.
	ErrorPage func(w http.ResponseWriter, r *http.Request, p *api.Problem)
	// WriteLimit bounds each write to a client that does not read; default 30 s.
	WriteLimit time.Duration
	// Routes is for tests; default Table().
	Routes []Route
}

// Guard stands before every handler of the head. It is an http.Handler.
type Guard struct {
	restored  func() bool
	roles     func(string) string
	hosts     hosts
	log       *slog.Logger
	now       func() time.Time
	rand      io.Reader
	page      func(http.ResponseWriter, *http.Request, *api.Problem)
	limit     time.Duration
	cross     *http.CrossOriginProtection
	sessions  *sessions
	anonymous *rates
	refused   *rates
	mux       *http.ServeMux
	rows      map[string]Route
	handled   map[string]bool
}

// New makes a Guard without handlers.
func New(o Options) (*Guard, error) {
	if o.Roles == nil {
		return nil, errors.New("access: no function that knows tokens was given, and nobody may ask without an identity")
	}
	names, err := newHosts(o.Hosts)
	if err != nil {
		return nil, err
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	g := &Guard{
		roles: o.Roles, restored: o.Restored, hosts: names, log: o.Logger, now: now, rand: o.Rand, page: o.ErrorPage,
		limit: cmp.Or(o.WriteLimit, 30*time.Second),
		cross: http.NewCrossOriginProtection(),
		mux:   http.NewServeMux(), rows: map[string]Route{}, handled: map[string]bool{},
		anonymous: newRates(anonymousRate, anonymousBurst, now),
		refused:   newRates(refusedRate, refusedBurst, now),
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.rand == nil {
		g.rand = rand.Reader
	}
	if g.page == nil {
		g.page = WriteProblem
	}
	g.sessions = newSessions(now, g.rand)
	routes := o.Routes
	if routes == nil {
		routes = Table()
	}
	for _, row := range routes {
		key := row.Method + " " + row.Pattern
		if _, twice := g.rows[key]; twice {
			return nil, fmt.Errorf("access: two rows for %s", key)
		}
		if (row.Need == None) != row.Anonymous {
			return nil, fmt.Errorf("access: the row of %s must need a role or be open to everybody, and not both", key)
		}
		g.rows[key] = row
	}
	return g, nil
}

// Handle serves a route. It fails for a route that has no row in the table or is
// served already, so nothing can be reached that nobody decided about (P10).
func (g *Guard) Handle(method, pattern string, h http.Handler) error {
	key := method + " " + pattern
	row, ok := g.rows[key]
	if !ok {
		return fmt.Errorf("access: no row says who may use %s; add one to Table", key)
	}
	if g.handled[key] {
		return fmt.Errorf("access: %s is served twice", key)
	}
	g.handled[key] = true
	g.mux.Handle(key, g.admit(row, h))
	return nil
}

// Check fails if a row has no handler: the table must not promise what is not there.
func (g *Guard) Check() error {
	for key := range g.rows {
		if !g.handled[key] {
			return fmt.Errorf("access: %s has a row but nothing serves it", key)
		}
	}
	return nil
}

// ServeHTTP does what every request needs, whatever it asks for, then routes.
func (g *Guard) ServeHTTP(base http.ResponseWriter, r *http.Request) {
	w := newWriter(base, g.limit, g.now)
	defer w.extend() // what is still buffered is written after this returns
	a := &admission{id: g.requestID()}
	r = r.WithContext(withAdmission(r.Context(), a))
	w.Header().Set(api.HeaderRequestID, a.id)
	SecurityHeaders(w.Header())
	defer g.recover(w, r)
	hurry(w, r, g.now)

	switch {
	case !g.hosts.allows(r.Host):
		g.refuse(w, r, NewProblem(http.StatusMisdirectedRequest, CodeHost, api.ExitDenied,
			fmt.Sprintf("this head does not answer for host %.80q", r.Host),
			"use localhost or a loopback address, or configure the name on the head"))
		return
	case g.cross.Check(r) != nil:
		g.refuse(w, r, crossSite())
		return
	}
	switch h, pattern := g.mux.Handler(r); {
	case pattern == "":
		g.unknown(w, r)
	case strings.Contains(pattern, "{"):
		g.mux.ServeHTTP(w, r) // once more, for the values in the path
	default:
		h.ServeHTTP(w, r)
	}
}

// admit is the gate of one row.
func (g *Guard) admit(row Route, h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*writer) //nolint:forcetypeassert // ServeHTTP is the only caller of the mux
		if row.Anonymous || row.Loopback && r.Header.Get("Authorization") == "" && fromHere(r) {
			if !g.anonymous.take(remote(r)) {
				g.busy(w, r)
				return
			}
		} else {
			if !g.authorise(w, r, row) {
				return
			}
		}
		if row.Kind == API && g.crossRead(r) {
			g.refuse(w, r, crossSite())
			return
		}
		take := readBody
		if row.Kind == Upload {
			take = g.upload
		}
		if p := take(w, r, row.Kind); p != nil {
			g.refuse(w, r, p)
			return
		}
		h.ServeHTTP(w, r)
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			g.audit(r, row.Need, w.status, "")
		}
	})
}

// authorise answers the request itself if it may not go on.
func (g *Guard) authorise(w *writer, r *http.Request, row Route) bool {
	if g.restored != nil && !g.restored() {
		p, after := RetryLater(http.StatusServiceUnavailable, CodeStarting, "this head is still reading its log", time.Second)
		SetRetryAfter(w.Header(), after)
		g.refuse(w, r, p)
		return false
	}
	who := g.identify(r)
	if who.Role == None {
		g.nobody(w, r)
		return false
	}
	connOf(r.Context()).authenticated()
	admissionOf(r.Context()).who = who
	if who.Role < row.Need {
		g.refuse(w, r, NewProblem(http.StatusForbidden, CodeRole, api.ExitDenied,
			fmt.Sprintf("%s %s needs the role %s; this identity is %s", r.Method, row.Pattern, row.Need, who.Role),
			"ask somebody with that role, or use another token (TROUPE_TOKEN, --context)"))
		return false
	}
	return true
}

// nobody answers a request without a valid identity.
func (g *Guard) nobody(w *writer, r *http.Request) {
	if !g.refused.take(remote(r)) {
		g.busy(w, r)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="troupe"`)
	detail := "this request carries no identity"
	if r.Header.Get("Authorization") != "" {
		detail = "the token is not one of this cluster, or is no longer valid"
	}
	if wantsPage(r) {
		g.refuse(w, r, NewProblem(http.StatusUnauthorized, CodeNoIdentity, api.ExitDenied, "This browser is not signed in to this cluster, or its session is over.",
			"run `troupe ui` on a machine that has the cluster's token and open the address that it prints"))
		return
	}
	g.refuse(w, r, NewProblem(http.StatusUnauthorized, CodeNoIdentity, api.ExitDenied, detail,
		"send `Authorization: Bearer TOKEN`; `troupe up` and `troupe head init` write the token's file; for the page run `troupe ui`"))
}

func (g *Guard) busy(w *writer, r *http.Request) {
	p, after := RetryLater(http.StatusTooManyRequests, CodeRate, "too many requests without an identity from this address", time.Second)
	SetRetryAfter(w.Header(), after)
	g.refuse(w, r, p)
}

// unknown answers what no row covers, to identified callers only: 405 with the methods
// that are there, else 404.
func (g *Guard) unknown(w *writer, r *http.Request) {
	if g.identify(r).Role == None {
		g.nobody(w, r)
		return
	}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = method
		if _, pattern := g.mux.Handler(probe); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		g.refuse(w, r, NewProblem(http.StatusMethodNotAllowed, CodeMethod, api.ExitUsage,
			fmt.Sprintf("%.20s is no method of %.200s", r.Method, r.URL.Path), "use "+strings.Join(allowed, " or ")))
		return
	}
	g.refuse(w, r, NewProblem(http.StatusNotFound, CodeNoRoute, api.ExitNotFound,
		fmt.Sprintf("there is nothing at %.200s", r.URL.Path), "the routes are listed in /api/openapi.json; a client newer than the head can ask for what the head does not know"))
}

// refuse answers a problem in the form that the asker reads, and leaves a line.
func (g *Guard) refuse(w *writer, r *http.Request, p *api.Problem) {
	q := *p
	q.Instance = RequestID(r.Context())
	if wantsPage(r) {
		g.page(w, r, &q)
	} else {
		WriteProblem(w, r, &q)
	}
	g.audit(r, None, p.Status, p.Code)
}

// audit leaves one line for each change and each denial.
func (g *Guard) audit(r *http.Request, need Role, status int, code string) {
	who := IdentityOf(r.Context())
	g.log.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("request_id", RequestID(r.Context())), slog.String("method", r.Method), slog.String("path", clip(r.URL.Path)),
		slog.Int("status", status), slog.String("code", code), slog.String("role", who.Role.String()), slog.String("identity", who.Key),
		slog.String("need", need.String()), slog.String("remote", r.RemoteAddr))
}

// recover turns a defect into an answer: the process lives and the log knows.
func (g *Guard) recover(w *writer, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // the server's own way to cut a connection
	}
	g.log.LogAttrs(r.Context(), slog.LevelError, "a handler failed",
		slog.String("request_id", RequestID(r.Context())), slog.String("method", r.Method), slog.String("path", clip(r.URL.Path)),
		slog.Any("panic", v), slog.String("stack", stack()))
	if w.status == 0 {
		g.refuse(w, r, Defect(r))
	}
}

// Defect is the problem for an error that no caller can act on; details are in the log.
func Defect(r *http.Request) *api.Problem {
	return NewProblem(http.StatusInternalServerError, CodeDefect, api.ExitDefect,
		"a defect in troupe: this request failed for a reason that is not the caller's",
		fmt.Sprintf("look for request %s in the head's log and report it", RequestID(r.Context())))
}

// crossRead reports a read that another site's page made. Browsers would not show it
// the answer, but it can hold a stream open, and has no business here.
func (g *Guard) crossRead(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false // Check has seen it
	}
	as := *r
	as.Method = http.MethodPost
	return g.cross.Check(&as) != nil
}

func crossSite() *api.Problem {
	return NewProblem(http.StatusForbidden, CodeCrossSite, api.ExitDenied,
		"the request comes from a page of another site", "open the page of this head (`troupe ui`) and ask from there")
}

func (g *Guard) requestID() string {
	var raw [8]byte
	if _, err := io.ReadFull(g.rand, raw[:]); err != nil {
		return "none" // an id is for finding a line in the log, nothing depends on it
	}
	return hex.EncodeToString(raw[:])
}
