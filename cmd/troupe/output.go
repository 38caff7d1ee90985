package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// table is rows under upper-case headers, two spaces between columns, no borders.
type table struct {
	head []string
	// right marks columns of numbers.
	right map[int]bool
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (a *app) print(t table) {
	widths := make([]int, len(t.head))
	all := t.rows
	if !a.nohead {
		all = append([][]string{t.head}, t.rows...)
	}
	for _, r := range all {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(clean(c)))
		}
	}
	most := a.screen()
	for _, r := range all {
		var b strings.Builder
		for i, c := range r {
			c = clean(c)
			if c == "" {
				c = "-"
			}
			pad := strings.Repeat(" ", widths[i]-min(widths[i], utf8.RuneCountInString(c)))
			switch {
			case t.right[i]:
				b.WriteString(pad + c)
			case i == len(r)-1:
				b.WriteString(c)
			default:
				b.WriteString(c + pad)
			}
			if i < len(r)-1 {
				b.WriteString("  ")
			}
		}
		_, _ = fmt.Fprintln(a.out, fitted(strings.TrimRight(b.String(), " "), most))
	}
}

// fitted cuts a line to the width of the screen, and shows that it did; 0 is no limit.
func fitted(line string, most int) string {
	if most <= 0 || utf8.RuneCountInString(line) <= most {
		return line
	}
	return string([]rune(line)[:most-1]) + "…"
}

// screen is how wide a line of a table may be: as wide as the terminal. Nothing is cut of
// what goes to a file or another program, nor of what was asked for in full.
func (a *app) screen() int {
	f, ok := a.out.(*os.File)
	if !ok || a.format == "wide" {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// clean neutralises control characters, so that a name or a message cannot move the
// cursor of whoever reads it.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if unicode.IsControl(r) || r == utf8.RuneError || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

func (a *app) json(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if a.format == "json" {
		e.SetIndent("", "  ")
	}
	_ = e.Encode(v)
}

// one prints a single thing: JSON, its name, or what f prints for people.
func (a *app) one(v any, name string, f func()) {
	switch a.format {
	case "json", "jsonl":
		a.json(a.out, v)
	case "name":
		_, _ = fmt.Fprintln(a.out, name)
	default:
		f()
	}
}

// several prints what a command did to each of its targets: one of them like a single
// thing, more as a list, so that JSON is one document either way.
func several[T any](a *app, xs []T, name, word func(T) string) {
	if a.format == "json" && len(xs) != 1 {
		a.json(a.out, api.List[T]{Items: xs})
		return
	}
	for _, x := range xs {
		a.one(x, name(x), func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", name(x), word(x)) })
	}
}

// show prints a collection; cut rows are always said.
func show[T any](a *app, l api.List[T], name func(T) string, f func([]T) table) {
	switch a.format {
	case "json":
		a.json(a.out, l)
	case "jsonl":
		for _, x := range l.Items {
			a.json(a.out, x)
		}
	case "name":
		for _, x := range l.Items {
			_, _ = fmt.Fprintln(a.out, name(x))
		}
	default:
		a.print(f(l.Items))
	}
	a.more(len(l.Items), l.Remaining)
}

// more says that not all is shown.
func (a *app) more(shown int, remaining int64) {
	if remaining > 0 {
		a.note("%d of %d; --all shows the rest", shown, int64(shown)+remaining)
	}
}

func (a *app) isTTY() bool {
	f, ok := a.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// when is a relative age for people and RFC 3339 for programs.
func (a *app) when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	if !a.isTTY() || a.format == "wide" {
		return t.UTC().Format(time.RFC3339)
	}
	return age(time.Since(t))
}

// ago is when within a sentence.
func (a *app) ago(t time.Time) string {
	s := a.when(t)
	if t.IsZero() || !a.isTTY() || a.format == "wide" {
		return s
	}
	return s + " ago"
}

// ageHead is the header above what when prints.
func (a *app) ageHead() string {
	if !a.isTTY() || a.format == "wide" {
		return "CREATED"
	}
	return "AGE"
}

func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func number(p *int64) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

func bytesText(n int64) string {
	const k = 1024
	if n < k {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/k, "KiB"
	for _, u := range []string{"MiB", "GiB", "TiB", "PiB"} {
		if f < k {
			break
		}
		f, unit = f/k, u
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
