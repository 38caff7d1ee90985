package access

import (
	"context"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
)

// ContentSecurityPolicy lets a page load its own style sheets and pictures and send
// its own forms; no script runs, inline styles do not apply, nothing may frame it.
const ContentSecurityPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// securityHeaders are made once: all answers share the values, which nobody changes in
// place.
var securityHeaders = http.Header{
	"Content-Security-Policy": {ContentSecurityPolicy},
	"X-Content-Type-Options":  {"nosniff"},
	"X-Frame-Options":         {"DENY"},
	// same-origin and not no-referrer: the latter makes browsers send `Origin: null`
	// with the page's own forms.
	"Referrer-Policy":              {"same-origin"},
	"Cross-Origin-Opener-Policy":   {"same-origin"},
	"Cross-Origin-Resource-Policy": {"same-origin"},
	"Cache-Control":                {"no-store"},
}

// SecurityHeaders are on every answer, also on those that are no page today.
func SecurityHeaders(h http.Header) { maps.Copy(h, securityHeaders) }

// admission is what a Guard says of a request to those behind it: an id at once, and who
// asks when it knows.
type admission struct {
	id  string
	who Identity
}

func withAdmission(ctx context.Context, a *admission) context.Context {
	return context.WithValue(ctx, requestKey, a)
}

// WithIdentity says in a context who makes the request; a Guard does, and tests.
func WithIdentity(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey, who)
}

// remote is the address without the port, which is what bounds are counted by.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// wantsPage reports whether the asker reads HTML: what is below /ui, and a browser
// that was pointed at an address which is not there.
func wantsPage(r *http.Request) bool {
	if r.URL.Path == "/ui" || strings.HasPrefix(r.URL.Path, "/ui/") {
		return true
	}
	return !strings.HasPrefix(r.URL.Path, "/api/") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func stack() string { return string(debug.Stack()) }
