package agree

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// TestTranscript runs the transcript that the Python side runs as well.
func TestTranscript(t *testing.T) {
	raw, err := os.ReadFile("testdata/rank.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Events []struct {
			Propose, Decide []int64
			Call            *int64
			Off             bool
		}
		Moves []string
		State [2]uint64
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	words := map[Move]string{Go: "go", Hold: "hold", SaveNow: "save", SaveAndEnd: "end"}
	for _, c := range cases {
		var r Rank
		var b Board
		var moves []string
		for _, e := range c.Events {
			switch {
			case e.Propose != nil:
				b.Proposal, b.Target = uint64(e.Propose[0]), e.Propose[1]
			case e.Decide != nil:
				b.Verdict, b.Word = uint64(e.Decide[0]), Word(e.Decide[1])
			case e.Off:
				r.CallOff()
			default:
				moves = append(moves, words[r.Call(*e.Call, b)])
			}
		}
		if !slices.Equal(moves, c.Moves) || r.Acknowledged != c.State[0] || r.Settled != c.State[1] {
			t.Errorf("%s: %v %d %d, want %v %v", c.Name, moves, r.Acknowledged, r.Settled, c.Moves, c.State)
		}
	}
}

func TestJudge(t *testing.T) {
	quick := View{Step: 5, Calls: 9, Quiet: time.Second, P99: time.Second}
	with := func(f func(*View)) View {
		v := quick
		f(&v)
		return v
	}
	for _, c := range []struct {
		v    View
		want string
	}{
		{quick, "later"},
		{with(func(v *View) { v.Acknowledged = 4 }), "yes"},
		{with(func(v *View) { v.Acknowledged, v.Step = 4, 12 }), "yes"}, // it holds, or has gone on by the verdict
		{with(func(v *View) { v.Acknowledged = 3 }), "later"},
		{with(func(v *View) { v.Step = 10 }), WhyPassed},
		{with(func(v *View) { v.Settled = 4 }), WhyPassed},
		{with(func(v *View) { v.Ended, v.Acknowledged = true, 4 }), WhyEnded},
		{with(func(v *View) { v.Phase = true }), WhyPhase},
		{with(func(v *View) { v.Calls = 0 }), WhyNever},
		{with(func(v *View) { v.Calls = 1 }), WhyNew},
		{with(func(v *View) { v.Quiet = 11 * time.Second }), WhySilent},
		{with(func(v *View) { v.Quiet, v.P99 = 11*time.Second, 5*time.Second }), "later"},
		{with(func(v *View) { v.Quiet, v.P99 = 16*time.Second, 5*time.Second }), WhySilent},
	} {
		answered, yes, why := Judge(4, 10, c.v)
		got := why
		if !answered {
			got = "later"
		} else if yes {
			got = "yes"
		}
		if got != c.want {
			t.Errorf("%+v: %s, want %s", c.v, got, c.want)
		}
	}
}

func TestTarget(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		reports []Report
		doubled int64
		want    int64
	}{
		{[]Report{{Step: -1}, {Step: -1}}, 0, 2},
		{[]Report{{Step: 10, Pace: time.Second}, {Step: 11, Pace: time.Second}}, 0, 13},             // at least two
		{[]Report{{Step: 10, Pace: 100 * ms}}, 0, 15},                                               // half a second's worth
		{[]Report{{Step: 10, Age: time.Second, Pace: 100 * ms}, {Step: 17, Pace: 100 * ms}}, 0, 25}, // extrapolated
		{[]Report{{Step: 10, Pace: 100 * ms}}, 2, 30},
		{[]Report{{Step: 10, Pace: 100 * ms}}, 20, 310}, // 30 seconds' worth
		{[]Report{{Step: 10, Pace: time.Minute}}, 20, 14},
		{[]Report{{Step: 10, Pace: 1}}, 30, 10 + 30_000_000_000},
	} {
		if got, _ := Target(c.reports, c.doubled); got != c.want {
			t.Errorf("%+v doubled %d: %d, want %d", c.reports, c.doubled, got, c.want)
		}
	}
}

// TestLeader walks through the decisions of one agreement.
func TestLeader(t *testing.T) {
	now := time.Unix(1000, 0)
	reports := []Report{{Rank: 0, Step: 5}, {Rank: 1, Step: 5}}
	p := func(s wire.ProposalState, code string, ago time.Duration) *Proposal {
		return &Proposal{Proposal: wire.Proposal{Number: 3, Target: 9, State: s, Stop: true}, Code: code, Never: 3, Doubled: 2, At: now.Add(-ago).UnixNano()}
	}
	yes := func(rank int64) wire.RankAnswer { return wire.RankAnswer{Rank: rank, Number: 3, Yes: true} }
	no := func(rank int64, why string) wire.RankAnswer { return wire.RankAnswer{Rank: rank, Number: 3, Why: why} }
	for name, c := range map[string]struct {
		f    Facts
		want Action
		code string
	}{
		"nobody wants anything":             {Facts{Reports: reports}, Wait, ""},
		"one rank has not reported":         {Facts{Want: WantStop, Reports: reports[:1]}, Wait, ""},
		"the first":                         {Facts{Want: WantStop, Reports: reports}, Propose, ""},
		"a node is silent":                  {Facts{Want: WantStop, Reports: reports, Silent: "b"}, Wait, ""},
		"it falls silent":                   {Facts{Last: p(wire.ProposalOpen, "", 0), Silent: "b"}, Drop, WhyNode},
		"half have answered":                {Facts{Last: p(wire.ProposalOpen, "", 0), Answers: []wire.RankAnswer{yes(0), yes(0)}}, Wait, ""},
		"an answer to another proposal":     {Facts{Last: p(wire.ProposalOpen, "", 0), Answers: []wire.RankAnswer{yes(0), {Rank: 1, Number: 2, Yes: true}}}, Wait, ""},
		"all have":                          {Facts{Last: p(wire.ProposalOpen, "", 0), Answers: []wire.RankAnswer{yes(1), yes(0)}}, Agree, ""},
		"one refuses":                       {Facts{Last: p(wire.ProposalOpen, "", 0), Answers: []wire.RankAnswer{yes(0), no(1, WhyPhase)}}, Drop, WhyPhase},
		"passed counts most":                {Facts{Last: p(wire.ProposalOpen, "", 0), Answers: []wire.RankAnswer{no(0, WhyPhase), no(1, WhyPassed)}}, Drop, WhyPassed},
		"agreed, and not behind all":        {Facts{Want: WantStop, Last: p(wire.ProposalAgreed, "", 0), Reports: reports}, Wait, ""},
		"agreed, and all end":               {Facts{Want: WantStop, Last: p(wire.ProposalAgreed, "", 0), Reports: []Report{{Settled: 3, Bound: 3}, {Settled: 3, Bound: 3}}}, Wait, ""},
		"agreed, and the end is taken back": {Facts{Want: WantStop, Last: p(wire.ProposalAgreed, "", 0), Reports: []Report{{Step: 9, Settled: 3}, {Step: 9, Settled: 3}}}, Propose, ""},
		"passed: again at once":             {Facts{Want: WantStop, Last: p(wire.ProposalDropped, WhyPassed, 0), Reports: reports}, Propose, ""},
		"phase: again after a second":       {Facts{Want: WantStop, Last: p(wire.ProposalDropped, WhyPhase, time.Second/2), Reports: reports}, Wait, ""},
		"the second is over":                {Facts{Want: WantStop, Last: p(wire.ProposalDropped, WhyPhase, time.Second), Reports: reports}, Propose, ""},
		"never calls":                       {Facts{Want: WantStop, Last: p(wire.ProposalDropped, WhyNever, 0), Reports: reports}, Unable, ""},
	} {
		c.f.World, c.f.Now, c.f.Number = 2, now, 3
		d := Decide(c.f)
		if d.Action != c.want || d.Code != c.code {
			t.Errorf("%s: %d %q (%s), want %d %q", name, d.Action, d.Code, d.Why, c.want, c.code)
		}
		if d.Action == Propose && (d.Proposal.Number != 4 || d.Proposal.Target < 7) {
			t.Errorf("%s: %+v", name, d.Proposal)
		}
	}
}

// TestPropTarget: the target is above every published step by at least two, and by at most
// what thirty seconds are worth.
func TestPropTarget(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var reports []Report
		for i := range rapid.IntRange(1, 5).Draw(rt, "ranks") {
			reports = append(reports, Report{
				Rank: int64(i), Step: rapid.Int64Range(-1, 1<<62).Draw(rt, "step"),
				Age:  time.Duration(rapid.Int64().Draw(rt, "age")),
				Pace: time.Duration(rapid.Int64Range(0, 1<<62).Draw(rt, "pace")),
			})
		}
		target, margin := Target(reports, rapid.Int64Range(0, 100).Draw(rt, "doubled"))
		if margin < 2 || target < 2 {
			rt.Fatalf("target %d, margin %d", target, margin)
		}
		for _, r := range reports {
			if r.Step < maxProposalT && target < r.Step+2 {
				rt.Fatalf("target %d, published %d", target, r.Step)
			}
		}
	})
}

func TestPace(t *testing.T) {
	var p Pace
	for i := range int64(20) {
		p.See(i*1e9, uint64(i), i, i*1e9)
	}
	if p.PerStep() != time.Second || p.P99() != time.Second || p.Quiet(21e9) != 2*time.Second {
		t.Errorf("%s %s %s", p.PerStep(), p.P99(), p.Quiet(21e9))
	}
	p.See(40e9, 20, 20, 40e9)
	if p.P99() != 21*time.Second {
		t.Errorf("%s", p.P99())
	}
	if s := fmt.Sprint(WordOf(wire.Proposal{State: wire.ProposalAgreed}), WordOf(wire.Proposal{State: wire.ProposalDropped, Stop: true})); s != "1 0" {
		t.Error(s)
	}
}
