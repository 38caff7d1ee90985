package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Bounds of a request's body.
const (
	MaxBody     = 1 << 20 // bytes
	MaxDepth    = 32      // of nested JSON
	bodyTimeout = 10 * time.Second
	maxForm     = 4 << 10 // bytes of a form of the page
)

// readBody reads and bounds the whole body before anything else looks at it, and puts
// it back. Reading it here means that a slow sender is cut by one rule, and that a
// handler which waits for minutes has no deadline on its connection.
func readBody(w http.ResponseWriter, r *http.Request, kind Kind) *api.Problem {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		// A body means nothing here. The server reads at most 256 KiB of it and then
		// closes the connection.
		r.Body = http.NoBody
		return nil
	}
	if p := contentType(r, kind); p != nil {
		return p
	}
	limit := int64(MaxBody)
	if kind == Page {
		limit = maxForm
	}
	tooLarge := func() *api.Problem {
		return NewProblem(http.StatusRequestEntityTooLarge, CodeTooLarge, api.ExitBadInput,
			fmt.Sprintf("the body is larger than the limit of %d bytes (api-body)", limit),
			"put large data into a file that the ranks can read and send its path")
	}
	if r.ContentLength > limit {
		return tooLarge()
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		p := NewProblem(http.StatusRequestTimeout, CodeSlowBody, api.ExitUnreachable,
			fmt.Sprintf("the body did not arrive within %s", bodyTimeout), "send it again")
		p.Retryable = true
		return p
	case err != nil:
		return NewProblem(http.StatusBadRequest, CodeMalformed, api.ExitBadInput, "the body ended early: "+err.Error(), "send it again")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // handlers may take long
	if kind == API {
		if p := depth(data); p != nil {
			return p
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	r.ContentLength = int64(len(data))
	return nil
}

// hurry gives a body a deadline as soon as there is one. It counts also for what is
// refused unread: the server reads the rest of such a body to keep the connection, and
// would wait for it for ever. Only a body that came whole takes the deadline back.
func hurry(w http.ResponseWriter, r *http.Request, now func() time.Time) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(now().Add(bodyTimeout)) // a test's recorder has none
	}
}

// contentType refuses bodies that a web page could send to another site without
// asking (forms, plain text), and compressed ones, whose size is not known.
func contentType(r *http.Request, kind Kind) *api.Problem {
	refuse := func(detail string) *api.Problem {
		return NewProblem(http.StatusUnsupportedMediaType, CodeContentType, api.ExitBadInput, detail, "send application/json, not compressed")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return refuse(fmt.Sprintf("the body is encoded as %.40q; it has to come as it is", e))
	}
	sent := r.Header.Get("Content-Type")
	if sent == "" && r.ContentLength == 0 {
		return nil
	}
	if kind == API && sent == "application/json" {
		return nil // what every client of ours sends
	}
	media, _, err := mime.ParseMediaType(sent)
	switch {
	case err == nil && kind == API && media == "application/json":
		return nil
	case err == nil && kind == Page && media == "application/x-www-form-urlencoded":
		return nil
	case err == nil && kind == Upload && media == "application/octet-stream":
		return nil
	case sent == "":
		return refuse("the body has no Content-Type")
	}
	return refuse(fmt.Sprintf("Content-Type %.80q is not read here", sent))
}

// depth refuses JSON that nests too deep, before a decoder recurses into it. Whether
// it is JSON at all is for the decoder to say.
func depth(data []byte) *api.Problem {
	level, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if level++; level > MaxDepth {
				return NewProblem(http.StatusBadRequest, CodeMalformed, api.ExitBadInput,
					fmt.Sprintf("the body nests deeper than the limit of %d levels at byte %d", MaxDepth, i), "no request needs more than a few levels")
			}
		case c == '}' || c == ']':
			level--
		}
	}
	return nil
}
