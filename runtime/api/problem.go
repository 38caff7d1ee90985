package api

import "fmt"

// FieldError points at one wrong field of a request.
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Problem is an RFC 9457 error, the one error type that crosses the API. Code is
// stable (TRP-S014); Exit is the exit code the command line ends with.
type Problem struct {
	Type      string       `json:"type,omitempty"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Instance  string       `json:"instance,omitempty"`
	Code      string       `json:"code"`
	Help      string       `json:"help,omitempty"` // what to do next
	Errors    []FieldError `json:"errors,omitempty"`
	Retryable bool         `json:"retryable,omitempty"`
	Leader    string       `json:"leader,omitempty"`
	Exit      int          `json:"exit,omitempty"`
}

// Error says what happened, to what, and what to do.
func (p *Problem) Error() string {
	s := p.Title
	if p.Detail != "" {
		s = p.Detail
	}
	if p.Code != "" {
		return fmt.Sprintf("error[%s]: %s", p.Code, s)
	}
	return "error: " + s
}

// Exit codes of every command (`troupe help exit-codes`).
const (
	ExitOK          = 0
	ExitFailed      = 1  // the thing failed, a waited condition came out false, or findings
	ExitUsage       = 64 // wrong flag or command
	ExitBadInput    = 65 // malformed input
	ExitNotFound    = 66
	ExitUnreachable = 69 // head unreachable or outcome unknown
	ExitDefect      = 70 // defect in Troupe
	ExitOS          = 71 // the operating system refused
	ExitConflict    = 73 // version moved on, state folder or port in use
	ExitTimeout     = 74 // timed out, or stopped only where nodes could be reached
	ExitRetry       = 75 // preempted, time limit, infrastructure
	ExitDenied      = 77
	ExitNever       = 78 // can never be placed, or not configured
	ExitInterrupted = 130
)
