package access

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// NewSignInCode makes a code that opens the page once within CodeLife, with the role
// of whoever asks for it. Errors are *api.Problem.
func (g *Guard) NewSignInCode(ctx context.Context) (code string, expires time.Time, err error) {
	code, expires, ok, err := g.sessions.newCode(IdentityOf(ctx).Role)
	if err != nil {
		return "", time.Time{}, NewProblem(http.StatusInternalServerError, CodeDefect, api.ExitOS, "no random numbers: "+err.Error(), "look at the head's machine")
	}
	if !ok {
		p, _ := RetryLater(http.StatusTooManyRequests, CodeSignIn,
			fmt.Sprintf("%d sign-in codes are waiting to be used", MaxCodes), CodeLife)
		return "", time.Time{}, p
	}
	return code, expires, nil
}

// SignInPath is where a code is used, relative to the head's own root.
func SignInPath(code string) string { return "/ui/sign-in?code=" + url.QueryEscape(code) }

// SignIn turns the code of the request into a session cookie; nil says that it did.
func (g *Guard) SignIn(w http.ResponseWriter, r *http.Request) *api.Problem {
	code := r.URL.Query().Get("code")
	help := "run `troupe ui` for a new address"
	if code == "" || len(code) > maxSecret {
		return NewProblem(http.StatusUnauthorized, CodeSignIn, api.ExitDenied, "this page is opened by an address that `troupe ui` prints", help)
	}
	session, _, ok, err := g.sessions.redeem(code)
	if err != nil {
		return NewProblem(http.StatusInternalServerError, CodeDefect, api.ExitOS, "no random numbers: "+err.Error(), "look at the head's machine")
	}
	if !ok {
		if !g.refused.take(remote(r)) {
			p, after := RetryLater(http.StatusTooManyRequests, CodeRate, "too many wrong sign-in codes from this address", time.Second)
			SetRetryAfter(w.Header(), after)
			return p
		}
		return NewProblem(http.StatusUnauthorized, CodeSignIn, api.ExitDenied,
			fmt.Sprintf("this address was used already or is older than %s", CodeLife), help)
	}
	http.SetCookie(w, sessionCookie(r, session, int(SessionLife/time.Second)))
	return nil
}

// SignOut ends the session of the request and makes the browser forget it.
func (g *Guard) SignOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName(r)); err == nil {
		g.sessions.end(cookie.Value)
	}
	http.SetCookie(w, sessionCookie(r, "", -1))
}

// sessionCookie is not Secure over plain HTTP, where browsers would drop it; plain HTTP
// is served on loopback only.
func sessionCookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure whenever there is TLS, see above
		Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}
