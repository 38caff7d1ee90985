package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

//go:embed templates static
var files embed.FS

// Reader is what the page reads of the head.
type Reader interface {
	Status(ctx context.Context) (api.Status, error)
	Jobs(ctx context.Context) ([]api.Job, uint64, error)
	Job(ctx context.Context, id string) (api.Job, error)
	Groups(ctx context.Context) ([]api.Group, uint64, error)
	Nodes(ctx context.Context) ([]api.Node, uint64, error)
	Actors(ctx context.Context) ([]api.Actor, uint64, error)
	Checkpoints(ctx context.Context, run string) ([]api.Checkpoint, uint64, error)
	LastEvents(ctx context.Context, object string, limit int) ([]api.Event, error)
	Queues(ctx context.Context) ([]api.QueueStatus, uint64, error)
	QueueOrder(ctx context.Context, name string) ([]api.OrderRow, uint64, error)
	Declared(ctx context.Context) (api.Declared, error)
	Why(ctx context.Context, target string, whatIf ...string) (api.Why, error)
	Version() api.Version
}

// Options of the page. Reader is required.
type Options struct {
	Reader Reader
	Logger *slog.Logger
	Now    func() time.Time // default time.Now
}

// Page renders the page without script.
type Page struct {
	r         Reader
	log       *slog.Logger
	now       func() time.Time
	templates map[string]*template.Template
	statics   map[string]static
}

type static struct {
	data []byte
	etag string
}

// refresh is how often the page reloads itself, in seconds.
const refresh = 5

// Rows that one page shows; it says so when there are more.
const (
	maxRows   = 200
	maxEvents = 200
	fewEvents = 15
)

// New parses the templates, so that a mistake in one is found at the start.
func New(o Options) (*Page, error) {
	if o.Reader == nil {
		return nil, errors.New("dashboard: no reader was given")
	}
	p := &Page{r: o.Reader, log: o.Logger, now: o.Now, templates: map[string]*template.Template{}, statics: map[string]static{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.now == nil {
		p.now = time.Now
	}
	for _, name := range []string{"overview", "queue", "nodes", "groups", "jobs", "job", "actors", "events", "problem", "signedout"} {
		t, err := template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html", "templates/"+name+".html")
		if err != nil {
			return nil, fmt.Errorf("dashboard: template %s: %w", name, err)
		}
		p.templates[name] = t
	}
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := fs.ReadFile(files, "static/"+e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		p.statics[e.Name()] = static{data: data, etag: `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	return p, nil
}

// Handlers are the page's routes, all for GET, by their pattern in the table of
// head/access.
func (p *Page) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		"/ui/{$}":              p.view("overview", "./", "Overview", p.overview),
		"/ui/queue":            p.view("queue", "./", "Queue", p.queue),
		"/ui/nodes":            p.view("nodes", "./", "Nodes", p.nodes),
		"/ui/placement-groups": p.view("groups", "./", "Placement groups", p.groups),
		"/ui/jobs":             p.view("jobs", "./", "Jobs", p.jobs),
		"/ui/jobs/{id}":        p.view("job", "../", "Job", p.job),
		"/ui/actors":           p.view("actors", "./", "Actors", p.actors),
		"/ui/events":           p.view("events", "./", "Events", p.events),
		"/ui/static/{file}":    http.HandlerFunc(p.static),
	}
}

// frame is what every page shows around its content.
type frame struct {
	Title   string
	Active  string // the entry of the navigation that this page is
	Base    string // relative path to /ui/; every address is below it, so any prefix works
	Here    string // this page as it is looked at, relative to itself, with its refresh
	Still   string // the same without
	Refresh int    // seconds; 0: no refresh
	Paused  bool
	Signed  bool
	Now     time.Time
	Version string
	Body    any
}

// view wraps the making of one page: its content is made first and written whole, so
// that an error is an error page with its own status and never half a page.
func (p *Page) view(name, base, title string, load func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := load(r)
		if err != nil {
			p.Problem(w, r, asProblem(r.Context(), p.log, err))
			return
		}
		f := p.frame(r, title, base)
		f.Active = name
		f.Signed = true
		if f.Paused = r.URL.Query().Get("refresh") == "off"; !f.Paused {
			f.Refresh = refresh
		}
		if named, ok := body.(interface{ title() string }); ok {
			f.Title = named.title()
		}
		f.Body = body
		p.write(w, r, http.StatusOK, name, f)
	})
}

func (p *Page) frame(r *http.Request, title, base string) frame {
	here := r.URL.Path
	for i := len(here) - 1; i >= 0; i-- {
		if here[i] == '/' {
			here = here[i+1:]
			break
		}
	}
	if here == "" {
		here = "./"
	}
	query := r.URL.Query()
	query.Del("refresh")
	still := url.Values{"refresh": {"off"}}
	maps.Copy(still, query)
	return frame{Title: title, Base: base, Here: address(here, query), Still: address(here, still), Now: p.now().UTC(), Version: p.r.Version().Version}
}

func address(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

func (p *Page) write(w http.ResponseWriter, r *http.Request, status int, name string, f frame) {
	var out bytes.Buffer
	if err := p.templates[name].Execute(&out, f); err != nil {
		// A template fails only by our own mistake; the answer is still a page.
		p.log.ErrorContext(r.Context(), "a page could not be made", "page", name, "err", err)
		out.Reset()
		status = http.StatusInternalServerError
		out.WriteString("<!doctype html><html lang=\"en\"><title>Troupe</title><h1>This page could not be made</h1><p>The head's log says why.</p></html>")
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // the client is gone if this fails
}

// Problem answers a problem as a page that says what happened and what to do.
func (p *Page) Problem(w http.ResponseWriter, r *http.Request, problem *api.Problem) {
	f := p.frame(r, problem.Title, base(r))
	f.Signed = problem.Status != http.StatusUnauthorized && problem.Status != http.StatusMisdirectedRequest
	f.Body = problem
	p.write(w, r, problem.Status, "problem", f)
}

// SignedOut answers the end of a session.
func (p *Page) SignedOut(w http.ResponseWriter, r *http.Request) {
	p.write(w, r, http.StatusOK, "signedout", p.frame(r, "Signed out", base(r)))
}

// base is the relative path from any address to /ui/, where a page may be shown that
// was not asked for.
func base(r *http.Request) string {
	rest, below := cutPrefix(r.URL.Path, "/ui/")
	depth := count(rest, '/')
	if !below {
		// Some address outside of /ui.
		depth = count(r.URL.Path, '/') - 1
		return up(depth) + "ui/"
	}
	return up(depth)
}

func up(depth int) string {
	if depth <= 0 {
		return "./"
	}
	out := make([]byte, 0, 3*min(depth, 32))
	for range min(depth, 32) {
		out = append(out, "../"...)
	}
	return string(out)
}

func (p *Page) static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	s, ok := p.statics[name]
	if !ok {
		p.Problem(w, r, noPage(r.URL.Path))
		return
	}
	h := w.Header()
	h.Set("ETag", s.etag)
	h.Set("Cache-Control", "no-cache") // asked again each time, sent again only when changed
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(s.data))
}
