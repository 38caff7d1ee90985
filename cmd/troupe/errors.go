package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// exitError carries an exit code and, if text is set, what to print.
type exitError struct {
	code int
	text string
	help string
	name string // stable code, TRP-…
}

func (e *exitError) Error() string { return e.text }

func fail(code int, name, help, format string, args ...any) error {
	return &exitError{code: code, name: name, help: help, text: fmt.Sprintf(format, args...)}
}

// usage is a complaint about the command line itself.
func usage(format string, args ...any) error {
	return fail(api.ExitUsage, "TRP-C064", "", format, args...)
}

// missing is what a command says about a thing that is not there.
func missing(help, format string, args ...any) error {
	return fail(api.ExitNotFound, "TRP-C066", help, format, args...)
}

// malformed is what a command says about input that it cannot read.
func malformed(help, format string, args ...any) error {
	return fail(api.ExitBadInput, "TRP-C065", help, format, args...)
}

// finish prints an error the one way errors are printed and returns the exit code.
func (a *app) finish(err error) int {
	if err == nil {
		return api.ExitOK
	}
	p := a.problemOf(err)
	if p.Title == "" && p.Detail == "" {
		return p.Exit // said already
	}
	if a.machine() {
		a.json(a.err, p)
		return p.Exit
	}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	label := "error"
	if p.Code != "" {
		label += "[" + p.Code + "]"
	}
	_, _ = fmt.Fprintf(a.err, "%s: %s\n", label, clean(text))
	for _, f := range p.Errors {
		if !strings.Contains(text, f.Detail) {
			_, _ = fmt.Fprintf(a.err, "  %s: %s\n", strings.TrimPrefix(f.Pointer, "/"), clean(f.Detail))
		}
	}
	if p.Help != "" {
		_, _ = fmt.Fprintf(a.err, "help: %s\n", clean(p.Help))
	}
	return p.Exit
}

// problemOf turns any error into a problem with an exit code.
func (a *app) problemOf(err error) *api.Problem {
	if x, ok := errors.AsType[*exitError](err); ok {
		return &api.Problem{Title: x.text, Detail: x.text, Code: x.name, Help: x.help, Exit: x.code}
	}
	if p := troupe.AsProblem(err); p != nil {
		q := *p
		if q.Exit == 0 {
			q.Exit = exitOfStatus(q.Status)
		}
		if q.Exit == api.ExitDenied && q.Help == "" {
			q.Help = "the token is that of TROUPE_TOKEN or of the context; see: troupe context list"
		}
		return &q
	}
	for _, k := range kinds {
		if k.is(err) {
			text := k.text
			if text == "" {
				text = strings.TrimPrefix(err.Error(), "troupe: ")
			}
			return &api.Problem{Title: text, Detail: text, Code: fmt.Sprintf("TRP-C%03d", k.exit), Help: k.help, Exit: k.exit}
		}
	}
	return &api.Problem{
		Title: err.Error(), Detail: err.Error(), Code: "TRP-C070", Exit: api.ExitDefect,
		Help: "this is a defect in Troupe if the message does not say otherwise; report it with the output of: troupe version",
	}
}

// kinds are the errors of libraries and of the system that a user can meet, with what
// to do about each. The first that matches counts.
var kinds = []struct {
	is   func(error) bool
	exit int
	text string // instead of the error's own
	help string
}{
	{is(context.Canceled), api.ExitInterrupted, "interrupted", ""},
	{is(context.DeadlineExceeded), api.ExitTimeout, "gave up: --timeout is over", "give it longer, or look with: troupe why TARGET"},
	{is(troupe.ErrNoCluster), api.ExitUnreachable, "", "start a cluster: troupe up -d; or name one: --address, TROUPE_ADDRESS"},
	{func(err error) bool { return errors.Is(err, troupe.ErrConfig) && errors.Is(err, os.ErrNotExist) }, api.ExitNever, "", "the cluster was removed; troupe up -d starts one, troupe context use chooses another"},
	{is(troupe.ErrConfig), api.ExitBadInput, "", "mend or remove the file"},
	{is(troupe.ErrUnreachable), api.ExitUnreachable, "", "start a cluster: troupe up -d; or name its address: --address, TROUPE_ADDRESS"},
	{is(consensus.ErrLocked, agent.ErrLocked), api.ExitConflict, "", "another process uses the state folder; `troupe status` asks it, `troupe down` ends it"},
	{is(consensus.ErrAlreadyInitialized), api.ExitConflict, "", "start it with: troupe head start; or name an empty folder"},
	{is(consensus.ErrNotInitialized), api.ExitNever, "", "create a cluster first: troupe head init"},
	{is(syscall.EADDRINUSE), api.ExitConflict, "", "another program listens there; name another port, or 0 for any free one"},
	{is(syscall.EACCES, syscall.EPERM), api.ExitOS, "", "check the owner and the mode of the folder, or name another: --state"},
	{is(syscall.ENOSPC, syscall.EDQUOT), api.ExitOS, "", "free some space, or name a folder on another disk: --state"},
	{is(syscall.EROFS), api.ExitOS, "", "the file system is read-only; name another folder: --state"},
	{is(syscall.EMFILE, syscall.ENFILE), api.ExitOS, "", "raise the limit of open files: ulimit -n"},
	{is(syscall.ENOTDIR), api.ExitOS, "", "a file stands where a folder belongs; name another path"},
	{is(syscall.EISDIR), api.ExitOS, "", "a folder stands where a file belongs; name another path"},
	{is(consensus.ErrStorage), api.ExitOS, "", "the state folder cannot be used as it is; its disk and mode come first"},
	{is(os.ErrNotExist), api.ExitNotFound, "", ""},
	{isPath, api.ExitOS, "", ""},
	{func(err error) bool { var op *net.OpError; return errors.As(err, &op) }, api.ExitOS, "", ""},
}

// is matches any of the targets.
func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func isPath(err error) bool {
	var p *os.PathError
	return errors.As(err, &p)
}

func exitOfStatus(status int) int {
	switch status {
	case 400, 405, 413, 415, 422:
		return api.ExitBadInput
	case 401, 403, 421:
		return api.ExitDenied
	case 404, 410:
		return api.ExitNotFound
	case 409, 412:
		return api.ExitConflict
	case 429, 502, 503:
		return api.ExitUnreachable
	case 504:
		return api.ExitTimeout
	}
	return api.ExitDefect
}
