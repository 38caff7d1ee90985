package simulate

import (
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/head/schedule"
)

// philly is the whole trace of the tests.
func philly(t *testing.T) *Trace {
	t.Helper()
	f, err := os.Open("testdata/philly.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, "philly.csv", z, ReadOptions{})
}

func read(t *testing.T, name string, in io.Reader, o ReadOptions) *Trace {
	t.Helper()
	tr, err := ReadTrace(name, in, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// figures are those by which rules are compared.
type figures struct {
	completion, wait, p99, wide, longestWide, longest float64
}

func figuresOf(out []Outcome) figures {
	var f figures
	var waits []time.Duration
	wide := 0.0
	for i := range out {
		o := &out[i]
		w := o.Wait().Seconds()
		f.completion += o.Completion().Seconds()
		f.wait += w
		f.longest = max(f.longest, w)
		waits = append(waits, o.Wait())
		if o.Job.GPUs() >= 16 {
			wide++
			f.wide += w
			f.longestWide = max(f.longestWide, w)
		}
	}
	n := float64(len(out))
	f.completion, f.wait, f.p99 = math.Round(f.completion/n), math.Round(f.wait/n), spread(waits).P99.D().Seconds()
	if wide > 0 {
		f.wide = math.Round(f.wide / wide)
	}
	f.p99 = math.Round(f.p99)
	return f
}

// The reference figures of the trace on 640 GPUs, with run times that are known.
func TestPlainRulesGiveTheReferenceFigures(t *testing.T) {
	tr := philly(t)
	for _, c := range []struct {
		rule schedule.PlainRule
		want figures
	}{
		{schedule.PlainFIFO, figures{46303, 33167, 129936, 17652, 111985, 159124}},
		{schedule.PlainShortest, figures{17597, 4461, 42707, 5945, 220046, 614313}},
		{schedule.PlainFirstFit, figures{28655, 15519, 109639, 60145, 703288, 703288}},
		{schedule.PlainEASY, figures{40762, 27626, 119494, 16618, 106514, 153305}},
	} {
		r, err := Plain(t.Context(), c.rule, tr, 640_000, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := figuresOf(r.Jobs); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.rule, got, c.want)
		}
	}
}

// Gangs of hundreds of GPUs, which arrive four times as fast as they did. The reference
// figures are those of arrivals at whole seconds; quarters of a second shift a mean by less
// than one.
func TestPlainRulesOnWideGangs(t *testing.T) {
	want := map[schedule.PlainRule]float64{
		schedule.PlainFIFO: 147016, schedule.PlainShortest: 29017, schedule.PlainFirstFit: 113777, schedule.PlainEASY: 107874,
	}
	for _, whole := range []bool{true, false} {
		f, err := os.Open("testdata/kalos.csv")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		tr := read(t, "kalos.csv", f, ReadOptions{Faster: 4})
		off := 1.0
		if whole {
			off = 0
			for i := range tr.Jobs {
				tr.Jobs[i].Submit = tr.Jobs[i].Submit.Truncate(time.Second)
			}
		}
		for _, rule := range schedule.PlainRules {
			r, err := Plain(t.Context(), rule, tr, 1_024_000, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := figuresOf(r.Jobs).wait; math.Abs(got-want[rule]) > off {
				t.Errorf("%s, whole seconds %v: mean wait %.0f s, want %.0f s", rule, whole, got, want[rule])
			}
		}
	}
}

// naive is every rule once more, without any structure that makes it fast: a list of what
// waits, a list of what runs, and one second after the other.
func naive(rule schedule.PlainRule, jobs []Job, pool int64) []time.Duration {
	started := make([]time.Duration, len(jobs))
	var waiting []int
	ends := map[int]time.Duration{}
	free, arrived := pool, 0
	start := func(i int, now time.Duration) {
		started[i] = now
		ends[i] = now + jobs[i].Takes
		free -= jobs[i].Milli()
	}
	for now := time.Duration(0); arrived < len(jobs) || len(waiting) > 0 || len(ends) > 0; now += time.Second {
		for again := true; again; { // a job of no length ends in the second that it starts in
			again = false
			changed := false
			for i, at := range ends {
				if at == now {
					free += jobs[i].Milli()
					delete(ends, i)
					changed = true
				}
			}
			for arrived < len(jobs) && jobs[arrived].Submit == now {
				waiting = append(waiting, arrived)
				arrived++
				changed = true
			}
			if !changed {
				break
			}
			var left []int
			blocked, shadow, extra := false, time.Duration(0), int64(0)
			order := waiting
			if rule == schedule.PlainShortest {
				order = nil
				for rest := append([]int(nil), waiting...); len(rest) > 0; {
					best := 0
					for k := range rest {
						if jobs[rest[k]].Takes < jobs[rest[best]].Takes {
							best = k
						}
					}
					order = append(order, rest[best])
					rest = append(rest[:best], rest[best+1:]...)
				}
			}
			for _, i := range order {
				need, fits := jobs[i].Milli(), jobs[i].Milli() <= free
				switch {
				case !blocked && fits, blocked && rule == schedule.PlainFirstFit && fits:
					start(i, now)
					again = again || jobs[i].Takes == 0
				case blocked && rule == schedule.PlainEASY && fits && (now+jobs[i].Takes <= shadow || need <= extra):
					if now+jobs[i].Takes > shadow {
						extra -= need
					}
					start(i, now)
					again = again || jobs[i].Takes == 0
				default:
					left = append(left, i)
					if !blocked {
						blocked = true
						shadow, extra = naiveShadow(jobs, ends, free, need, now)
					}
				}
			}
			if rule == schedule.PlainShortest {
				kept := map[int]bool{}
				for _, i := range left {
					kept[i] = true
				}
				left = nil
				for _, i := range waiting {
					if kept[i] {
						left = append(left, i)
					}
				}
			}
			waiting = left
		}
	}
	return started
}

// naiveShadow counts on second by second until what is free is enough.
func naiveShadow(jobs []Job, ends map[int]time.Duration, free, need int64, now time.Duration) (time.Duration, int64) {
	for at := now; ; at += time.Second {
		sum := free
		for i, end := range ends {
			if end <= at {
				sum += jobs[i].Milli()
			}
		}
		if sum >= need {
			return at, sum - need
		}
	}
}

// At every size of the pool the rules do what they say, by a second program that does it
// the slow way.
func TestPlainRulesAgreeWithTheSlowWay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pool := int64(rapid.IntRange(1, 12).Draw(rt, "pool"))
		tr := &Trace{}
		at := 0
		for i := range rapid.IntRange(1, 30).Draw(rt, "jobs") {
			at += rapid.IntRange(0, 4).Draw(rt, "gap")
			j := Job{Name: fmt.Sprint(i), Submit: time.Duration(at) * time.Second, Takes: time.Duration(rapid.IntRange(0, 20).Draw(rt, "takes")) * time.Second}
			j.Spec.Ranks, j.Spec.Resources.GPUs = rapid.Int64Range(1, pool).Draw(rt, "ranks"), 1
			tr.Jobs = append(tr.Jobs, j)
		}
		for _, rule := range schedule.PlainRules {
			r, err := Plain(t.Context(), rule, tr, pool*1000, nil)
			if err != nil {
				rt.Fatal(err)
			}
			want := naive(rule, tr.Jobs, pool*1000)
			for i := range want {
				if got := r.Jobs[i].Started; got != want[i] {
					rt.Fatalf("%s: job %d starts at %s, want %s", rule, i, got, want[i])
				}
			}
		}
	})
}

func TestPlainRefuses(t *testing.T) {
	if _, err := Plain(t.Context(), "lottery", &Trace{}, 1000, nil); err == nil {
		t.Error("an unknown rule was taken")
	}
	if _, err := Plain(t.Context(), schedule.PlainFIFO, &Trace{}, 0, nil); err == nil {
		t.Error("a pool of nothing was taken")
	}
	tr := &Trace{Jobs: []Job{{Name: "wide"}, {Name: "fits"}}}
	tr.Jobs[0].Spec.Ranks, tr.Jobs[0].Spec.Resources.GPUs = 9, 1
	tr.Jobs[1].Spec.Ranks, tr.Jobs[1].Spec.Resources.GPUs = 1, 1
	r, err := Plain(t.Context(), schedule.PlainFIFO, tr, 8000, nil)
	if err != nil || r.Jobs[0].Failed == "" || !r.Jobs[1].Done {
		t.Errorf("what can never fit is to be refused and to hold nobody up: %+v, %v", r, err)
	}
}
