package bus

import (
	"errors"
	"fmt"
	"strings"
)

// ErrSubject: the text is no subject, or no pattern; a defect of the caller.
var ErrSubject = errors.New("bus: not a subject")

// ErrDisconnected: the connection is down now. A publish was not sent; the outcome
// of a request that was under way is unknown.
var ErrDisconnected = errors.New("bus: not connected")

// maxSubject bounds subjects, so that the line that carries one stays within what
// the server reads (maxControlLine) together with a reply subject.
const maxSubject = 1024

// inboxRoot starts every reply subject; a Respond elsewhere is refused, because the
// requester chooses where its reply goes and must not speak with the responder's
// permissions.
const inboxRoot = "_INBOX."

// CheckSubject reports whether s can be published on: tokens of printable ASCII
// without wildcards, joined by points, at most 1,024 bytes.
func CheckSubject(s string) error { return checkTokens(s, false) }

// CheckPattern reports whether s can be subscribed to: a subject in which a token
// may be `*` and the last one `>`.
func CheckPattern(s string) error { return checkTokens(s, true) }

func checkTokens(s string, wild bool) error {
	bad := func(why string) error { return fmt.Errorf("%w: %.64q: %s", ErrSubject, s, why) }
	if s == "" {
		return bad("empty")
	}
	if len(s) > maxSubject {
		return bad("too long")
	}
	rest, token, more := s, "", true
	for more {
		token, rest, more = strings.Cut(rest, ".")
		switch {
		case token == "":
			return bad("a token is empty")
		case token == "*" && wild, token == ">" && wild && !more:
			continue
		}
		for i := range len(token) {
			if c := token[i]; c <= ' ' || c >= 0x7f || c == '*' || c == '>' {
				return bad("wildcards stand alone as a token, and a token is printable ASCII")
			}
		}
	}
	return nil
}

// Match reports whether pattern covers subject. Of two patterns it reports whether
// the first covers everything that the second does.
func Match(pattern, subject string) bool {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		s, srest, smore := strings.Cut(subject, ".")
		switch {
		case p == ">" && !pmore:
			return true
		case s == ">" && !smore:
			return false
		case p != "*" && p != s:
			return false
		case !pmore || !smore:
			return pmore == smore
		}
		pattern, subject = prest, srest
	}
}

func matchAny(patterns []string, subject string) bool {
	for _, p := range patterns {
		if Match(p, subject) {
			return true
		}
	}
	return false
}

// check refuses a permission that a server might read wider than it is written.
func (p Permission) check() error {
	for _, pattern := range append(append([]string(nil), p.Publish...), p.Subscribe...) {
		if err := CheckPattern(pattern); err != nil {
			return err
		}
	}
	for _, pattern := range p.Subscribe {
		// The server compares a subscription with this token by token and would take
		// the > of "a.>" for one token under "a.*".
		if pattern == "*" || strings.HasSuffix(pattern, ".*") {
			return fmt.Errorf("%w: permission to subscribe to %.64q: it may not end in *, write > or whole subjects", ErrSubject, pattern)
		}
	}
	if p.Inbox == "" {
		return nil
	}
	if err := CheckSubject(p.Inbox); err != nil {
		return err
	}
	if !strings.HasPrefix(p.Inbox, inboxRoot) {
		return fmt.Errorf("%w: inbox %.64q does not start with %s", ErrSubject, p.Inbox, inboxRoot)
	}
	return nil
}

// mayPublish and maySubscribe are what both implementations grant.
func (p Permission) mayPublish(subject string) bool { return matchAny(p.Publish, subject) }

func (p Permission) maySubscribe(pattern string) bool {
	return matchAny(p.Subscribe, pattern) || p.Inbox != "" && Match(p.Inbox+".>", pattern)
}
