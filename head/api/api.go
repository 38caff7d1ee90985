package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/head/dashboard"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Options of the API. Backend is required.
type Options struct {
	Backend Backend
	Logger  *slog.Logger
	// Restored reports whether the state holds everything acknowledged before the start;
	// until then every request but the anonymous ones is told to come again. Nil: always.
	Restored func() bool
	Hosts    []string // that requests may name besides loopback names and addresses

	Now  func() time.Time // default time.Now
	Rand io.Reader        // default crypto/rand

	// MaxStreams bounds event streams and blocking reads together (default 1000), and
	// MaxStreamsEach those of one identity (default 500).
	MaxStreams, MaxStreamsEach int
	Heartbeat                  time.Duration // of event streams; default 15 s
	// WriteLimit bounds each write to a client that does not read; default 30 s.
	WriteLimit time.Duration
}

type server struct {
	b         Backend
	guard     *access.Guard
	log       *slog.Logger
	now       func() time.Time
	streams   *access.Streams
	heartbeat time.Duration
	huma      huma.API
	openAPI   []byte
	errs      []error
}

// maxWait bounds how long a blocking read waits.
const maxWait = 30 * time.Second

// New makes the handler of everything that a head serves over HTTP: the API, the
// health routes and the page without script. Serve it with Serve.
func New(o Options) (http.Handler, error) {
	s, err := build(o)
	if err != nil {
		return nil, err
	}
	return s.guard, nil
}

func build(o Options) (*server, error) {
	if o.Backend == nil {
		return nil, errors.New("api: no backend was given")
	}
	s := &server{
		b: o.Backend, log: o.Logger, now: o.Now,
		streams:   access.NewStreams(cmp.Or(o.MaxStreams, 1000), cmp.Or(o.MaxStreamsEach, 500)),
		heartbeat: cmp.Or(o.Heartbeat, 15*time.Second),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	limit := cmp.Or(o.WriteLimit, 30*time.Second)
	page, err := dashboard.New(dashboard.Options{Reader: o.Backend, Logger: s.log, Now: s.now})
	if err != nil {
		return nil, err
	}
	s.guard, err = access.New(access.Options{
		Roles: o.Backend.TokenRole, Restored: o.Restored, Hosts: o.Hosts, Logger: s.log, Now: s.now, Rand: o.Rand,
		ErrorPage: page.Problem, WriteLimit: limit,
	})
	if err != nil {
		return nil, err
	}

	s.huma = huma.NewAPI(config(o.Backend.Version().Version), humago.NewAdapter(mux{s}, ""))
	s.routes()
	s.page(page)
	if s.openAPI, err = s.describe(); err != nil {
		return nil, err
	}
	if err := errors.Join(s.errs...); err != nil {
		return nil, err
	}
	return s, s.guard.Check()
}

func (s *server) routes() {
	s.health()
	s.jobs()
	s.packages()
	s.logs()
	s.groups()
	s.nodes()
	s.drains()
	s.queues()
	s.actors()
	s.checkpoints()
	s.events()
	s.account()
	s.serveMetrics()
}

// mux hands huma's routes to the guard.
type mux struct{ s *server }

func (m mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	method, path, _ := strings.Cut(pattern, " ")
	if path == "/api/v1/why/{kind}/{id}" {
		path = "/api/v1/why/{kind}/{id...}" // ids have slashes in them, OpenAPI has no word for it
	}
	m.s.handle(method, path, http.HandlerFunc(handler))
}

func (m mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.s.guard.ServeHTTP(w, r) }

func (s *server) handle(method, path string, h http.Handler) {
	if err := s.guard.Handle(method, path, h); err != nil {
		s.errs = append(s.errs, err)
	}
}

// config is huma's, without what it would add to every answer ($schema, Link) and
// without the routes that it would open by itself.
func config(version string) huma.Config {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	registry.RegisterTypeAlias(reflect.TypeFor[unit.MilliCPU](), reflect.TypeFor[milliCPUSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[unit.Bytes](), reflect.TypeFor[bytesSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[unit.Duration](), reflect.TypeFor[durationSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[api.Amounts](), reflect.TypeFor[map[string]int64]())
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: json.Unmarshal}
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Troupe", Version: version,
				Description: "The API of a Troupe head. Errors are RFC 9457 problems with a stable code, the exit code of the command line and what to do next. A request with an unknown field or parameter is refused; answers may gain fields.",
			},
			Components: &huma.Components{
				Schemas: registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "An opaque token of the cluster."},
				},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	}
	// The same schemas describe requests and answers, and answers may gain fields.
	c.AllowAdditionalPropertiesByDefault = true
	return c
}

// op is an operation with what all of ours have in common.
func op(method, path, id, summary string) huma.Operation {
	o := huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary,
		SkipValidateBody: true, // decode is stricter and points better
		// The guard has read the body. Without this huma sets a deadline that it never
		// takes back, and a handler that runs longer than it loses its connection.
		BodyReadTimeout: -1,
		MaxBodyBytes:    access.MaxBody + 1,
	}
	if strings.HasPrefix(path, "/api/") {
		o.Security = []map[string][]string{{"token": {}}}
	}
	return o
}

// takes documents the body that decode will read; optional bodies may be absent.
func takes[T any](s *server, o *huma.Operation, required bool) {
	schema := s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
	o.RequestBody.Required = required
	o.RequestBody.Content = map[string]*huma.MediaType{"application/json": {Schema: schema}}
}

// register serves an operation; errors of the handler become problems. document is
// called after huma has looked at the input type, whose raw body it describes as bytes.
func register[I, O any](s *server, o huma.Operation, document func(*huma.Operation), h func(*request, *I) (*O, error)) {
	if document != nil {
		o.RequestBody = &huma.RequestBody{}
	}
	huma.Register(s.huma, o, func(ctx ctx, in *I) (*O, error) {
		out, err := h(&request{ctx}, in)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return out, nil
	})
	if document != nil {
		document(&o)
	}
}

// describe renders the OpenAPI document once; it is the same for every caller.
func (s *server) describe() ([]byte, error) {
	raw, err := json.Marshal(s.huma.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("api: describe: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("api: describe: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// page serves the page without script and the sign-in that leads to it.
func (s *server) page(page *dashboard.Page) {
	for pattern, h := range page.Handlers() {
		s.handle(http.MethodGet, pattern, h)
	}
	s.handle(http.MethodGet, "/{$}", redirect("ui/"))
	s.handle(http.MethodGet, "/ui", redirect("ui/"))
	s.handle(http.MethodGet, "/ui/sign-in", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := s.guard.SignIn(w, r); p != nil {
			page.Problem(w, r, p)
			return
		}
		redirect("./")(w, r)
	}))
	s.handle(http.MethodPost, "/ui/sign-out", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.guard.SignOut(w, r)
		page.SignedOut(w, r)
	}))
	s.handle(http.MethodGet, "/api/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.openAPI) // the client is gone if this fails
	}))
}

// redirect sends the browser to a relative address, which is right below any prefix;
// http.Redirect would make it absolute.
func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusSeeOther)
	}
}

type milliCPUSchema struct{}

// Schema implements huma.SchemaProvider.
func (milliCPUSchema) Schema(huma.Registry) *huma.Schema {
	return quantity("Thousandths of a CPU as an integer; requests may also say \"2\" or \"1500m\".", "1500m")
}

type bytesSchema struct{}

// Schema implements huma.SchemaProvider.
func (bytesSchema) Schema(huma.Registry) *huma.Schema {
	return quantity("Bytes as an integer; requests may also say \"80GiB\".", "80GiB")
}

type durationSchema struct{}

// Schema implements huma.SchemaProvider.
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "A duration such as \"90s\" or \"1h30m\".", Examples: []any{"90s"}}
}

func quantity(text, example string) *huma.Schema {
	return &huma.Schema{
		Description: text, Examples: []any{example},
		OneOf: []*huma.Schema{{Type: huma.TypeInteger, Format: "int64"}, {Type: huma.TypeString}},
	}
}

// parameter is the problem of one wrong query parameter.
func parameter(name, detail string) error {
	return invalid([]api.FieldError{{Pointer: "query/" + name, Detail: detail}})
}
