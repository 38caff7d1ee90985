package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// noTraceback is torchrun's text for a failure of which nothing is known but its code.
const noTraceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

// launchResult prints torchrun's failure summary, whose words tools look for, and
// returns the exit code. Which failure is the root cause is the ledger's choice: by the
// order of causes over all nodes, not by time stamps.
func (a *app) launchResult(j api.Job, l launchRun) error {
	if j.State == api.Succeeded {
		return nil
	}
	for _, at := range j.Attempts[:max(0, len(j.Attempts)-1)] {
		if f := at.Failure; f != nil {
			a.errLine("attempt %d failed: %s", at.Number, clean(failureText(a.names(context.Background()), f)))
		}
	}
	if n := len(j.Attempts); n > 0 && j.Attempts[n-1].Failure != nil {
		f := j.Attempts[n-1].Failure
		f.Node = a.names(context.Background()).of(f.Node)
	}
	if text := failureSummary(l.set.Entry(l.script), j); text != "" {
		a.errLine("%s", text)
	}
	if j.Reason != nil {
		a.errLine("%s", clean(j.Reason.Text))
	}
	if l.flags.exitCode == "job" {
		return exitOf(j)
	}
	return &exitError{code: api.ExitFailed}
}

func (a *app) errLine(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format+"\n", args...) }

// failed is one failure as the summary shows it.
type failed struct {
	time, host, rank, local, exit, pid, file, text string
}

// failureSummary is torchrun's block, "" when nothing failed: a job that was stopped.
func failureSummary(entry string, j api.Job) string {
	if len(j.Attempts) == 0 {
		return ""
	}
	last := j.Attempts[len(j.Attempts)-1]
	root := last.Failure
	if root == nil {
		return ""
	}
	var list []failed
	at := -1
	for _, r := range last.Ranks {
		e := r.End
		switch {
		case r.Rank == root.Rank:
			at = len(list)
			list = append(list, failureOf(r, e, root, last.Ended))
		case e != nil && !e.ByTroupe && (e.Code != 0 || e.Signal != ""):
			list = append(list, failureOf(r, e, nil, last.Ended))
		}
	}
	if at < 0 { // not of one rank: a lost node, a start that failed
		at = len(list)
		list = append(list, failed{
			time: stamp(last.Ended), host: root.Node, rank: "<N/A>", local: "<N/A>", exit: strconv.FormatInt(root.ExitCode, 10),
			pid: "<N/A>", file: "<N/A>", text: root.Message,
		})
	}
	title := clean(entry) + " FAILED"
	width := len(title)
	blocks := make([]string, len(list))
	for i, f := range list {
		blocks[i] = f.block(i)
		for line := range strings.SplitSeq(blocks[i], "\n") {
			width = max(width, utf8.RuneCountInString(line))
		}
	}
	width = min(width, 60)
	others := make([]string, 0, len(blocks))
	for i, b := range blocks {
		if i != at {
			others = append(others, b)
		}
	}
	if len(others) == 0 {
		others = []string{"  <NO_OTHER_FAILURES>"}
	}
	bar, line := strings.Repeat("=", width), strings.Repeat("-", width)
	return strings.Join([]string{
		bar, title, line, "Failures:", strings.Join(others, "\n"), line,
		"Root Cause (first observed failure):", blocks[at], bar,
	}, "\n")
}

// failureOf is a rank's failure; root is the ledger's record of it if it is the root cause.
func failureOf(r api.Rank, e *api.RankEnd, root *api.Failure, ended time.Time) failed {
	f := failed{
		time: stamp(ended), host: r.Node, rank: strconv.FormatInt(r.Rank, 10), local: strconv.FormatInt(r.LocalRank, 10),
		pid: "<N/A>", file: "<N/A>",
	}
	var code int64
	var signal, message string
	if root != nil {
		code, signal, message = root.ExitCode, root.Signal, root.Message
	}
	if e != nil {
		code, signal = e.Code, e.Signal
		if root == nil {
			message = e.Message
		}
		f.time = stamp(e.At)
		if e.PID > 0 {
			f.pid = strconv.FormatInt(e.PID, 10)
		}
		if e.ErrorFile != "" {
			f.file = clean(e.ErrorFile)
		}
	}
	f.exit = strconv.FormatInt(torchCode(code, signal), 10)
	f.text = clean(message)
	switch {
	case root != nil && root.Traceback != "":
		f.text = strings.ReplaceAll(cleanLines(strings.TrimRight(root.Traceback, "\n")), "\n", "\n  ")
	case signal != "" && !strings.Contains(message, "memory"):
		f.text = fmt.Sprintf("Signal %d (%s) received by PID %s", -torchCode(code, signal), signal, f.pid)
	case message == "" || message == fmt.Sprintf("exit code %d", code):
		f.text = noTraceback
	}
	if signal != "" {
		f.pid += ")  (" + signal // as torchrun spaces it
	}
	return f
}

func (f *failed) block(i int) string {
	return fmt.Sprintf("[%d]:\n  time      : %s\n  host      : %s\n  rank      : %s (local_rank: %s)\n  exitcode  : %s (pid: %s)\n  error_file: %s\n  traceback : %s",
		i, f.time, clean(f.host), f.rank, f.local, f.exit, f.pid, f.file, f.text)
}

// torchCode writes a signal as torchrun does: a negative number.
func torchCode(code int64, signal string) int64 {
	if code > 128 && signal != "" {
		return 128 - code
	}
	return code
}

// stamp is a time as torchrun writes it.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "<N/A>"
	}
	return t.Local().Format("2006-01-02_15:04:05")
}
