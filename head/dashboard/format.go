package dashboard

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

var functions = template.FuncMap{
	"glyph": glyph, "tone": tone, "ago": ago, "until": until, "day": day, "span": func(d unit.Duration) string { return span(d.D()) }, "stamp": stamp, "clock": clock, "step": step,
	"names": names,
	"since": func(now, t time.Time) string {
		if t.IsZero() {
			return "no data"
		}
		return span(now.Sub(t))
	},
	"blocking": func(base string, reason *reasonView) any {
		return struct {
			Base   string
			Reason *reasonView
		}{base, reason}
	},
	"at": func(now time.Time, planned *api.Planned) any {
		return struct {
			Now     time.Time
			Planned *api.Planned
		}{now, planned}
	},
	"pair": func(caption string, events panel[api.Event]) any {
		return struct {
			Caption string
			Panel   panel[api.Event]
		}{caption, events}
	},
}

// glyph stands beside a state's word, so that no state is told by colour alone.
func glyph(state string) string {
	switch tone(state) {
	case "good":
		return "●"
	case "done":
		return "✓"
	case "bad":
		return "✗"
	case "warn":
		return "◐"
	case "held":
		return "‖"
	}
	return "○"
}

// tone is how a state looks; a word that a newer head knows and this page does not
// looks like one that waits.
func tone(state string) string {
	switch state {
	case string(api.Running), string(api.GroupPlaced), string(api.NodeReady), "ALIVE", "running", "committed", "open", "active":
		return "good"
	case string(api.Succeeded), string(api.GroupRemoved), string(api.Stopped), "DEAD", "over":
		return "done"
	case string(api.Failed), string(api.NodeLost), string(api.Preempted), "failed", "rolled-back":
		return "bad"
	case string(api.Recovering), string(api.Draining), string(api.Stopping), string(api.NodeSuspect), string(api.NodeAgentless), "RESTARTING", string(api.GroupRemoving):
		return "warn"
	case string(api.Held), string(api.Suspended), "paused":
		return "held"
	}
	return "wait"
}

// ago is the age of a time, or "never".
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	if d < time.Second {
		return "now"
	}
	return span(d) + " ago"
}

// until is how long it is to a time that is expected.
func until(now, t time.Time) string {
	d := t.Sub(now)
	if d < time.Second {
		return "now"
	}
	text := "in " + span(d)
	if rest := d % time.Hour / time.Minute; d >= time.Hour && d < 10*time.Hour && rest > 0 {
		text += " " + strconv.Itoa(int(rest)) + " min"
	}
	return text
}

// span is a length of time in its largest unit.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(max(0, int(d/time.Second))) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " d"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// day is a time that may be another day's.
func day(t time.Time) string {
	if t.IsZero() {
		return "no data"
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "no data"
	}
	return t.UTC().Format("15:04:05 UTC")
}

// step tells "no step yet" from step 0.
func step(n *int64) string {
	if n == nil {
		return "none yet"
	}
	return strconv.FormatInt(*n, 10)
}

// took is how long something lasted, or has lasted so far.
func took(now, from, to time.Time) string {
	switch {
	case from.IsZero():
		return "not started"
	case to.IsZero():
		to = now
	}
	return to.Sub(from).Round(time.Second).String()
}

// cores writes thousandths of a CPU as CPUs.
func cores(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

// amount is a count of a resource with its unit.
func amount(kind string, n int64) string {
	switch kind {
	case "CPU":
		return cores(n)
	case "Memory", "GPU memory":
		return unit.Bytes(n).Human()
	}
	return strconv.FormatInt(n, 10)
}

// needs says in words what one bundle or rank asks for.
func needs(r api.Resources) string {
	var parts []string
	if r.CPU > 0 {
		parts = append(parts, cores(int64(r.CPU))+" CPU")
	}
	if r.Memory > 0 {
		parts = append(parts, r.Memory.Human())
	}
	if r.GPUs > 0 {
		parts = append(parts, fmt.Sprintf("%d GPU", r.GPUs))
	}
	if r.Share > 0 {
		parts = append(parts, fmt.Sprintf("%d/1000 GPU", r.Share))
	}
	if r.GPUMemory > 0 {
		parts = append(parts, r.GPUMemory.Human()+" GPU memory")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// names lists the first few of many.
func names(list []string) string {
	const most = 4
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

func cutPrefix(s, prefix string) (string, bool) { return strings.CutPrefix(s, prefix) }

func count(s string, c byte) int { return strings.Count(s, string(c)) }

// asProblem is what the page says of an error.
func asProblem(ctx context.Context, log *slog.Logger, err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) && p.Status >= 400 && p.Status <= 599 {
		q := *p
		if q.Title == "" {
			q.Title = http.StatusText(q.Status)
		}
		return &q
	}
	log.ErrorContext(ctx, "a page could not be read", "err", err)
	return &api.Problem{
		Title: "No answer from the head's state", Status: http.StatusServiceUnavailable, Code: "TRP-D001",
		Detail: "The head could not read what this page shows.", Help: "The head's log says why. Reload the page; `troupe status` asks the same.", Retryable: true,
	}
}

func noPage(path string) *api.Problem {
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return &api.Problem{
		Title: "Not Found", Status: http.StatusNotFound, Code: "TRP-D002",
		Detail: "There is nothing at " + path + ".", Help: "Begin at the overview.",
	}
}
