package supervise

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what was decided into testdata/*.txt")

// TestTranscripts runs the stories in testdata: commands, a line of dashes, what was
// decided. `decide` asks once and carries the answer out as the head would.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatalf("found %d transcripts (%v)", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := replay(string(want))
			if err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s\n(-rewrite accepts it)", got, want)
			}
		})
	}
}

// replay returns the transcript with its answers filled in.
func replay(script string) (string, error) {
	var out strings.Builder
	w := &world{now: epoch}
	lines := strings.Split(strings.TrimRight(script, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line != "----" {
			if err := w.do(line); err != nil {
				return "", fmt.Errorf("line %d: %w", i+1, err)
			}
			continue
		}
		out.WriteString(w.said.String())
		w.said.Reset()
		for i+1 < len(lines) && lines[i+1] != "" {
			i++
		}
	}
	if w.said.Len() > 0 {
		return "", fmt.Errorf("decisions after the last ----: %s", w.said.String())
	}
	return out.String(), nil
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is the state of one job as the head would keep it.
type world struct {
	g     Group
	now   time.Time
	allot []Alloc // of the placement
	said  bytes.Buffer
}

func (w *world) do(line string) error {
	args, err := split(line)
	if err != nil {
		return err
	}
	name, args := args[0], args[1:]
	a := w.g.Attempt
	if a == nil && slices.Contains([]string{"started", "exit", "ended", "lost", "start-failed", "damaged", "port-used", "step"}, name) {
		return fmt.Errorf("%s: no attempt yet", name)
	}
	switch name {
	case "job":
		return w.job(args)
	case "at":
		d, err := time.ParseDuration(args[0])
		w.now = epoch.Add(d)
		return err
	case "placed":
		w.g.Placed = true
	case "unplaced":
		w.g.Placed = false
	case "held":
		w.g.State = api.Held
	case "moved":
		// The placement replaced a node.
		for i := range w.allot {
			if w.allot[i].Node == args[0] {
				w.allot[i].ID, w.allot[i].Node = w.allot[i].ID+"'", args[1]
			}
		}
		w.g.Lost = nil
	case "started":
		return w.each(args, func(x *Alloc) { x.Started = true })
	case "ended":
		return w.each(args, func(x *Alloc) { x.Ended = true })
	case "lost":
		return w.each(args, func(x *Alloc) {
			x.Lost = true
			w.g.Lost = append(w.g.Lost, x.Node)
		})
	case "start-failed":
		var code int64 // a third word: the command's doing, with the shell's exit code
		if len(args) > 2 {
			var err error
			if code, err = strconv.ParseInt(args[2], 10, 64); err != nil {
				return err
			}
		}
		return w.each(args[:1], func(x *Alloc) { x.StartFailed, x.StartCode, x.FailedAt = args[1], code, w.now })
	case "damaged":
		return w.each(args[:1], func(x *Alloc) { x.Damaged = args[1] })
	case "port-used":
		return w.each(args, func(x *Alloc) { x.PortUsed, x.Ended = true, true })
	case "step":
		a.FirstStep = true
	case "exit":
		return w.exit(args)
	case "stop":
		w.g.StopAsked = true
		w.g.StopReason = strings.Join(args, " ")
	case "owner-gone":
		w.g.OwnerGone = true
	case "decide":
		return w.decide()
	default:
		return fmt.Errorf("unknown command %q", name)
	}
	return nil
}

func (w *world) job(args []string) error {
	w.g = Group{Job: args[0], Kind: api.KindTraining, State: api.Queued}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		if id, node, ok := strings.Cut(key, "@"); ok {
			x := Alloc{ID: id, Node: node}
			for r := range strings.SplitSeq(value, ",") {
				rank, err := strconv.ParseInt(r, 10, 64)
				if err != nil {
					return err
				}
				x.Ranks = append(x.Ranks, rank)
			}
			w.allot = append(w.allot, x)
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		switch key {
		case "max-restarts":
			w.g.Policy.MaxRestarts, w.g.Policy.NoBackoff = &n, true
		case "user":
			w.g.Policy.User = &n
		case "infra":
			w.g.Policy.Infra = &n
		case "actor":
			w.g.ActorMaxRestarts, w.g.Kind = &n, api.KindActor
		case "kind":
			w.g.Kind, err = api.JobKind(value), nil
		default:
			return fmt.Errorf("job: unknown %q", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) each(ids []string, do func(*Alloc)) error {
	n := 0
	for i := range w.g.Attempt.Allocs {
		if x := &w.g.Attempt.Allocs[i]; len(ids) == 0 || slices.Contains(ids, x.ID) {
			do(x)
			n++
		}
	}
	if n < max(1, len(ids)) {
		return fmt.Errorf("%v: only %d of them are allocations", ids, n)
	}
	return nil
}

// exit RANK [code=N] [signal=N] [oom] [by-shim] [order=N] ["message"] ["traceback"]
func (w *world) exit(args []string) error {
	rank, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	e := Exit{At: w.now, RankExit: wire.RankExit{Rank: rank, StepsDone: -1}}
	for i := range w.g.Attempt.Allocs {
		if x := &w.g.Attempt.Allocs[i]; slices.Contains(x.Ranks, rank) {
			e.Alloc, e.Node = x.ID, x.Node
		}
	}
	for _, other := range w.g.Attempt.Exits {
		if other.Alloc == e.Alloc {
			e.Order++
		}
	}
	texts := []*string{&e.Message, &e.Traceback}
	for _, arg := range args[1:] {
		key, value, ok := strings.Cut(arg, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case ok && err == nil && key == "code":
			e.Code = n
		case ok && err == nil && key == "signal":
			e.Signal, e.Code = n, -1
		case ok && err == nil && key == "order":
			e.Order = n
		case arg == "oom":
			e.OOM = true
		case arg == "by-shim":
			e.ByShim = true
		case len(texts) > 0:
			*texts[0], texts = arg, texts[1:]
		default:
			return fmt.Errorf("exit: unknown %q", arg)
		}
	}
	w.g.Attempt.Exits = append(w.g.Attempt.Exits, e)
	return nil
}

// decide asks, checks that the answer is a function of the facts and changed none of
// them, prints it and carries it out.
func (w *world) decide() error {
	before := fmt.Sprintf("%#v %#v", w.g, w.g.Attempt)
	d := Decide(w.g, w.now)
	if again := Decide(w.g, w.now); !reflect.DeepEqual(d, again) {
		return fmt.Errorf("asked twice: %+v and %+v", d, again)
	}
	if after := fmt.Sprintf("%#v %#v", w.g, w.g.Attempt); after != before {
		return fmt.Errorf("Decide changed its input")
	}
	w.print(d)
	w.apply(d)
	return nil
}

func (w *world) print(d Decision) {
	fmt.Fprintf(&w.said, "%s", d.Action)
	if d.Action == Finish {
		fmt.Fprintf(&w.said, " %s exit=%d", d.State, d.ExitCode)
	}
	if d.Action == Start {
		fmt.Fprintf(&w.said, " attempt=%d", d.Number)
	}
	if d.Abort != "" {
		w.said.WriteString(" abort")
	}
	if d.Delay > 0 {
		fmt.Fprintf(&w.said, " delay=%s", d.Delay.Round(time.Millisecond))
	}
	fmt.Fprintf(&w.said, " [%s] %s\n", d.Reason.Code, d.Reason.Text)
	if d.RollBack != "" {
		fmt.Fprintf(&w.said, "  roll back: %s\n", d.RollBack)
	}
	if d.End == nil {
		return
	}
	cause := string(d.End.Cause)
	if cause == "" {
		cause = "none"
	}
	l := d.End.Ledger
	fmt.Fprintf(&w.said, "  end: cause=%s user=%d infra=%d failed=%d\n", cause, l.User, l.Infra, l.Failed)
	if f := d.End.Failure; f != nil {
		fmt.Fprintf(&w.said, "  failure: rank=%d node=%s exit=%d signal=%s oom=%v %s\n", f.Rank, f.Node, f.ExitCode, f.Signal, f.OOM, f.Message)
	}
}

// apply is what the head does with a decision, in one log entry.
func (w *world) apply(d Decision) {
	if d.End != nil {
		w.g.Attempt.Ended, w.g.Attempt.Again = true, d.End.Again
		w.g.Ledger = d.End.Ledger
		w.g.State = api.Recovering
	}
	switch d.Action {
	case Run:
		w.g.State = api.Running
	case Stop:
		w.g.State = api.Stopping
	case Finish:
		w.g.State = d.State
	case Start:
		w.g.State = api.Starting
		if w.g.Attempt != nil {
			w.g.State = api.Recovering
		}
		step := int64(10)
		a := &Attempt{Number: d.Number, Generation: uint64(d.Number) + 1, Created: w.now, Restore: &step}
		for _, x := range w.allot {
			a.Allocs = append(a.Allocs, x)
			a.World += int64(len(x.Ranks))
		}
		w.g.Attempt = a
	case Wait, Replace:
	}
}

// split cuts a line into words; "…" is one word, with Go's escapes.
func split(line string) ([]string, error) {
	var out []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			out, line = append(out, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, err
		}
		out, line = append(out, word), line[len(quoted):]
	}
	return out, nil
}
