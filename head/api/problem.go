package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Problem is api.Problem as huma writes it: with its status and content type.
type Problem struct{ api.Problem }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders implements huma.HeadersError: what passes by itself says when to retry.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	return h
}

// Unwrap lets errors.As find the *api.Problem.
func (p *Problem) Unwrap() error { return &p.Problem }

// huma keeps its error constructor in package variables; there is one API in a process,
// so this is set once, when the package is loaded.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return fromHuma(nil, status, msg, errs)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return fromHuma(ctx, status, msg, errs)
	}
}

// fromHuma turns what huma found wrong with parameters into a problem of ours.
func fromHuma(ctx huma.Context, status int, msg string, errs []error) *Problem {
	var fields []api.FieldError
	for _, err := range errs {
		var detail *huma.ErrorDetail
		if !errors.As(err, &detail) || len(fields) >= maxFieldErrors {
			continue
		}
		text := detail.Message
		place, name, _ := strings.Cut(detail.Location, ".")
		if text == "unknown query parameter" && ctx != nil {
			text = "is no parameter here" + suggestion(name, parameters(ctx.Operation()))
		}
		fields = append(fields, api.FieldError{Pointer: place + "/" + name, Detail: text})
	}
	if len(fields) > 0 {
		return instance(ctx, invalidProblem(fields))
	}
	code, exit := access.CodeInvalid, api.ExitBadInput
	if status >= 500 {
		code, exit = access.CodeDefect, api.ExitDefect
	}
	return instance(ctx, &Problem{*access.NewProblem(status, code, exit, msg, "")})
}

func instance(ctx huma.Context, p *Problem) *Problem {
	if ctx != nil {
		p.Instance = access.RequestID(ctx.Context())
	}
	return p
}

func parameters(op *huma.Operation) []string {
	var names []string
	for _, p := range op.Parameters {
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	return names
}

// problem turns an error of the backend into what the caller gets. An error that is no
// *api.Problem is a defect: its text may hold what callers must not see, so it goes to
// the log and they get the request's id.
func (s *server) problem(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*Problem](err); ok {
		own.Instance = access.RequestID(ctx)
		return own
	}
	var p *api.Problem
	switch {
	case errors.As(err, &p):
		q := *p
		q.Instance = access.RequestID(ctx)
		if q.Status < 400 || q.Status > 599 {
			q.Status = http.StatusInternalServerError
		}
		if q.Title == "" {
			q.Title = http.StatusText(q.Status)
		}
		if q.Type == "" && q.Code != "" {
			q.Type = "urn:troupe:error:" + q.Code
		}
		return &Problem{q}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		q, _ := access.RetryLater(http.StatusServiceUnavailable, access.CodeCanceled, "the request was given up before it was done; whether it was done is not known", 0)
		q.Help = "look at the state before sending it again; the same Idempotency-Key is safe"
		q.Instance = access.RequestID(ctx)
		return &Problem{*q}
	}
	s.log.ErrorContext(ctx, "a request failed for a reason that no caller can act on", "request_id", access.RequestID(ctx), "err", err)
	q := access.NewProblem(http.StatusInternalServerError, access.CodeDefect, api.ExitDefect,
		"a defect in troupe: this request failed for a reason that is not the caller's",
		"look for request "+access.RequestID(ctx)+" in the head's log and report it")
	q.Instance = access.RequestID(ctx)
	return &Problem{*q}
}

func notFound(what, id string) error {
	return access.NewProblem(http.StatusNotFound, access.CodeNotFound, api.ExitNotFound, "there is no "+what+" "+id, "list what there is: troupe "+what+" list")
}
