package access

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/pack"
)

// Bounds of an upload.
const (
	// MaxUpload is the longest body of an Upload route.
	MaxUpload = pack.MaxArchive
	// uploadPatience and uploadRate are how slow a sender may be: so long without anything,
	// and so many bytes a second from then on.
	uploadPatience = 30 * time.Second
	uploadRate     = 32 << 10
)

// upload bounds a body that is not read here: its length is known and checked before the
// first byte, and who sends too slowly is cut, so that nobody holds the handler for long.
func (g *Guard) upload(w http.ResponseWriter, r *http.Request, kind Kind) *api.Problem {
	if p := contentType(r, kind); p != nil {
		return p
	}
	switch {
	case r.ContentLength < 0:
		return NewProblem(http.StatusLengthRequired, CodeMalformed, api.ExitBadInput, "the length of the body is not said", "send Content-Length")
	case r.ContentLength > MaxUpload:
		return NewProblem(http.StatusRequestEntityTooLarge, CodeTooLarge, api.ExitBadInput,
			fmt.Sprintf("the body is larger than the limit of %d bytes (package-archive)", int64(MaxUpload)),
			"leave large files out with a .troupeignore, and put them where all nodes see them")
	}
	c := http.NewResponseController(w)
	r.Body = &steady{
		ReadCloser: http.MaxBytesReader(w, r.Body, r.ContentLength), began: g.now(),
		extend: func(t time.Time) { _ = c.SetReadDeadline(t) }, // a test's recorder has none
	}
	return nil
}

// steady gives a body more time with each byte that came.
type steady struct {
	io.ReadCloser
	began  time.Time
	n      int64
	extend func(time.Time)
}

func (s *steady) Read(p []byte) (int, error) {
	s.extend(s.began.Add(uploadPatience + time.Duration(s.n)*time.Second/uploadRate))
	n, err := s.ReadCloser.Read(p)
	s.n += int64(n)
	if err == io.EOF {
		s.extend(time.Time{}) // the answer may take long
	}
	return n, err
}
