package access

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Codes of the problems that requests meet before anybody looks at what they ask.
const (
	CodeNoIdentity  = "TRP-A001"
	CodeRole        = "TRP-A002"
	CodeHost        = "TRP-A003"
	CodeCrossSite   = "TRP-A004"
	CodeContentType = "TRP-A005"
	CodeTooLarge    = "TRP-A006"
	CodeMalformed   = "TRP-A007"
	CodeInvalid     = "TRP-A008"
	CodeNoRoute     = "TRP-A009"
	CodeMethod      = "TRP-A010"
	CodeRate        = "TRP-A011"
	CodeStreams     = "TRP-A012"
	CodeSlowBody    = "TRP-A013"
	CodeSignIn      = "TRP-A014"
	CodeEventsGone  = "TRP-A015"
	CodeNotFound    = "TRP-A016"
	CodeAmbiguous   = "TRP-A017"
	CodeClosing     = "TRP-A018"
	CodeCanceled    = "TRP-A019"
	CodeStarting    = "TRP-A020"
	CodeDefect      = "TRP-A099"
)

// NewProblem is a problem with its type and title filled in.
func NewProblem(status int, code string, exit int, detail, help string) *api.Problem {
	return &api.Problem{
		Type:   "urn:troupe:error:" + code,
		Title:  http.StatusText(status),
		Status: status,
		Detail: detail,
		Code:   code,
		Exit:   exit,
		Help:   help,
	}
}

// RetryLater is a problem that goes away by itself after about the given time.
func RetryLater(status int, code, detail string, after time.Duration) (p *api.Problem, retryAfter time.Duration) {
	p = NewProblem(status, code, api.ExitUnreachable, detail, fmt.Sprintf("try again in %s", after))
	p.Retryable = true
	return p, after
}

// WriteProblem answers with the problem as application/problem+json. It fills the
// instance with the request's id.
func WriteProblem(w http.ResponseWriter, r *http.Request, p *api.Problem) {
	q := *p
	if q.Instance == "" {
		q.Instance = RequestID(r.Context())
	}
	if q.Status < 400 || q.Status > 599 {
		q.Status = http.StatusInternalServerError
	}
	body, err := json.Marshal(&q)
	if err != nil { // only strings and numbers: cannot happen
		body = []byte(`{"title":"Internal Server Error","status":500,"code":"` + CodeDefect + `"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Del("Etag")
	w.WriteHeader(q.Status)
	_, _ = w.Write(append(body, '\n')) // the client is gone if this fails
}

// SetRetryAfter says in whole seconds, rounded up, when to try again.
func SetRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
}
