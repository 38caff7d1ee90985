package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// DefaultNoticeGrace is how long a node stays after a notice that names no time.
const DefaultNoticeGrace = 2 * time.Minute

const (
	noticeEvery   = 500 * time.Millisecond
	maxNoticeFile = 4 << 10
)

// notices are what this node knows of its own end. It is kept in the state folder, so that
// the next agent says the same under the same number, and knows what it must take back.
// Agent.mu guards it.
type notices struct {
	// Number is that of the newest thing to say, Told the newest that a head has in its log.
	Number uint64  `json:"number"`
	Told   uint64  `json:"told"`
	Boot   string  `json:"boot"`
	File   *notice `json:"file,omitempty"`
	Signal *notice `json:"signal,omitempty"`

	odd string // what was wrong with the file when it was looked at last; said once
}

// notice is one of two ways to hear of it.
type notice struct {
	Deadline int64  `json:"deadline"` // ns of this node's wall clock
	Cause    string `json:"cause"`
	Text     string `json:"text,omitempty"` // what the file held
}

// stands is the notice that counts: the earlier one; nil: the node stays.
func (n *notices) stands() *notice {
	switch {
	case n.File == nil:
		return n.Signal
	case n.Signal != nil && n.Signal.Deadline < n.File.Deadline:
		return n.Signal
	}
	return n.File
}

// ParseNotice reads the time that a notice leaves: a duration as "120s", or an RFC 3339
// moment, which may have passed. Nothing at all: grace.
func ParseNotice(text string, now time.Time, grace time.Duration) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return grace, nil
	}
	left, err := time.ParseDuration(text)
	if err != nil {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return 0, fmt.Errorf("%q is neither a time left, such as 120s, nor a moment, such as 2026-01-02T15:04:05Z", clipTo(text, 80))
		}
		left = max(at.Sub(now), time.Millisecond)
	}
	if left <= 0 || left > wire.MaxNoticeLeft {
		return 0, fmt.Errorf("%q is not within 0 and %s from now", clipTo(text, 80), wire.MaxNoticeLeft)
	}
	return left, nil
}

// readNotices takes up what the agent before knew. Of another boot only the number counts:
// the machine was taken away and is back.
func (a *Agent) readNotices() {
	b, err := os.ReadFile(filepath.Join(a.StateDir, noticeFile))
	if err == nil {
		err = json.Unmarshal(b, &a.notices)
	}
	if err != nil {
		a.notices = notices{}
		if !errors.Is(err, fs.ErrNotExist) {
			a.Logger.Warn("what was noticed of this node's end cannot be read; a notice that lasts is seen anew", "err", err)
		}
	}
	if a.notices.Boot != a.BootID {
		a.notices = notices{Number: a.notices.Number, Told: a.notices.Number, Boot: a.BootID}
	}
}

// noticesChanged numbers a change of what is to be said, and keeps it. a.mu is held.
func (a *Agent) noticesChanged() {
	n := &a.notices
	// Above all that was ever said, also by an agent whose file is lost.
	n.Number = max(n.Number+1, uint64(max(0, a.Clock.Now().UnixNano())))
	a.keepNoticeFile()
	wake(a.wakeNotice)
}

// keepNoticeFile writes what is known down. a.mu is held.
func (a *Agent) keepNoticeFile() {
	b, err := json.Marshal(&a.notices)
	if err == nil {
		err = writeDurable(filepath.Join(a.StateDir, noticeFile), b)
	}
	if err != nil {
		a.Logger.Warn("a notice of this node's end could not be kept; it is told all the same", "err", err)
	}
}

// NoticeSignal says that this node is about to be taken away, as a signal says it. One that
// comes again makes it no later.
func (a *Agent) NoticeSignal(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.Clock.Now()
	deadline := now.Add(a.NoticeGrace).UnixNano()
	if s := a.notices.Signal; s != nil && s.Deadline > now.UnixNano() {
		deadline = s.Deadline
	}
	a.notices.Signal = &notice{Deadline: deadline, Cause: "signal " + name}
	a.Logger.Warn("this node is about to be taken away", "signal", name, "deadline", time.Unix(0, deadline).UTC())
	a.noticesChanged()
}

// keepNotices looks for the file, and says what is noticed until a head has taken it.
func (a *Agent) keepNotices(ctx context.Context) {
	var wait backoff
	for ctx.Err() == nil {
		every := fetchEvery
		if a.NoticeFile != "" {
			every = noticeEvery
			a.lookForNotice()
		}
		switch said, ok := a.sayNotice(ctx); {
		case said && !ok:
			every = min(every, wait.next())
		case said:
			wait.reset()
			continue // something newer may have come meanwhile
		}
		a.pause(ctx, a.wakeNotice, every)
	}
}

// sayNotice tells a head the newest thing that none has taken; said is false when there is
// nothing to say, or no session to say it in.
func (a *Agent) sayNotice(ctx context.Context) (said, ok bool) {
	a.mu.Lock()
	n := &a.notices
	m := wire.Notice{Session: a.session, Boot: a.BootID, Number: n.Number, Withdrawn: true}
	if s := n.stands(); s != nil {
		m.Withdrawn, m.Cause = false, clipTo(s.Cause, wire.MaxNoticeText)
		left := time.Unix(0, s.Deadline).Sub(a.Clock.Now())
		m.Left = unit.Duration(min(max(left, time.Millisecond), wire.MaxNoticeLeft))
	}
	quiet := n.Told >= n.Number || !a.open
	a.mu.Unlock()
	if quiet {
		return false, false
	}
	var ack wire.NoticeAck
	err := a.call(ctx, wire.HeadNotice+a.NodeID, callTimeout, m, &ack)
	switch {
	case err != nil || ack.Number != m.Number:
		if ctx.Err() == nil {
			a.Logger.Debug("a notice was not acknowledged", "number", m.Number, "err", err)
		}
		return true, false
	case ack.Unknown:
		a.closeSession("the head does not know the session of a notice")
		return true, false
	case ack.Error != "":
		a.Logger.Error("the head refused a notice of this node's end", "number", m.Number, "reason", ack.Error)
	case m.Withdrawn && ack.Stays != "":
		a.Logger.Warn("the notice is taken back and the node takes nothing new all the same", "reason", ack.Stays, "undo", "troupe node undrain")
	default:
		a.Logger.Info("a head has taken the notice", "number", m.Number, "withdrawn", m.Withdrawn, "left", m.Left.D())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n.Told = max(n.Told, m.Number)
	a.keepNoticeFile()
	return true, true
}

// lookForNotice looks whether the file has come, says something else, or is gone.
func (a *Agent) lookForNotice() {
	text, there, err := readNotice(a.NoticeFile)
	a.mu.Lock()
	defer a.mu.Unlock()
	n := &a.notices
	odd := func(err error) {
		if s := err.Error(); s != n.odd {
			n.odd = s
			a.Logger.Warn("the notice file is not as it should be", "file", a.NoticeFile, "err", err)
		}
	}
	switch {
	case !there && err != nil:
		odd(err) // neither a notice nor the end of one
	case !there:
		n.odd = ""
		if n.File == nil {
			return
		}
		n.File = nil
		if s := n.Signal; s != nil && s.Deadline <= a.Clock.Now().UnixNano() {
			n.Signal = nil // its time is over, and the node is still here
		}
		a.Logger.Warn("the notice file is gone", "file", a.NoticeFile)
		a.noticesChanged()
	case n.File != nil && n.File.Text == text:
	default:
		now := a.Clock.Now()
		left, perr := ParseNotice(text, now, a.NoticeGrace)
		if err == nil {
			err = perr
		}
		next := &notice{Text: text, Cause: "file " + a.NoticeFile, Deadline: now.Add(left).UnixNano()}
		switch {
		case err == nil && strings.TrimSpace(text) != "":
			next.Cause += " says " + strings.TrimSpace(text)
		case n.File != nil: // what it said before counts
			next.Deadline, next.Cause = n.File.Deadline, n.File.Cause
		default:
			next.Deadline = now.Add(a.NoticeGrace).UnixNano()
		}
		if err != nil {
			odd(fmt.Errorf("%w; the node is taken to go at %s", err, time.Unix(0, next.Deadline).UTC().Format(time.RFC3339)))
		}
		same := n.File != nil && n.File.Deadline == next.Deadline
		n.File = next
		if same {
			a.keepNoticeFile()
			return
		}
		a.Logger.Warn("this node is about to be taken away", "file", a.NoticeFile, "deadline", time.Unix(0, next.Deadline).UTC())
		a.noticesChanged()
	}
}

// readNotice reads the file. An error with there says that it lies there and cannot be
// read, one without that nobody can tell.
func readNotice(path string) (text string, there bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not stop the agent
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return "", false, nil
	case err != nil:
		if _, serr := os.Stat(path); serr != nil {
			return "", false, serr
		}
		return "", true, fmt.Errorf("it cannot be read: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", true, errors.Join(errors.New("it is not a regular file"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxNoticeFile+1))
	switch {
	case err != nil:
		return "", true, fmt.Errorf("it cannot be read: %w", err)
	case len(b) > maxNoticeFile:
		return "", true, fmt.Errorf("it holds more than %d bytes", maxNoticeFile)
	}
	return strings.ToValidUTF8(string(b), "?"), true, nil
}

// clipTo cuts a text to n bytes.
func clipTo(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
