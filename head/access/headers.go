package access

import (
	"context"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
)

// ContentSecurityPolicy lets a page load its own style sheets and pictures and send
// its own forms; no script runs, inline styles do not apply, nothing may frame it.
const ContentSecurityPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// SecurityHeaders are on every answer, also on those that are no page today.
func SecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", ContentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	// same-origin and not no-referrer: the latter makes browsers send `Origin: null`
	// with the page's own forms.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

func withRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey, id)
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
