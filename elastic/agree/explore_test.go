package agree

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// The checker explores every order of events of a small group: ranks that compute,
// publish and call; shims that hear records of the log late and look at pages; a leader
// that hears of ranks late and is replaced at any time; a rank that dies. It runs the very
// state machines of this package. A scheme replaces parts of them to show that the checker
// finds what is wrong with simpler ones.
type scheme struct {
	look func(s *Shim, rank int64, v View) bool
	call func(r *Rank, step int64, b Board) Move
}

var real = scheme{look: (*Shim).Look, call: (*Rank).Call}

// broadcast: whoever hears of the step acts on it; nobody is asked.
var broadcast = scheme{look: (*Shim).Look, call: func(r *Rank, step int64, b Board) Move {
	if b.Proposal > r.Settled && step >= b.Target {
		r.Settled = b.Proposal
		if step == b.Target {
			return SaveNow
		}
	}
	return Go
}}

// unrefused: ranks acknowledge and hold, and no shim refuses for one that cannot.
var unrefused = scheme{call: (*Rank).Call, look: func(s *Shim, rank int64, v View) bool {
	if _, yes, _ := Judge(s.p.Number, s.p.Target, v); yes {
		return s.Look(rank, v)
	}
	return false
}}

type exploration struct {
	ranks     int
	steps     int64 // of the script
	collect   bool  // each step is a collective of all ranks
	stop      bool
	proposals uint64
	deaths    bool
	silence   bool // shims lose patience at any time
	scheme    scheme
}

const (
	computing = iota
	published
	reading // the call has read the board
)

type mrank struct {
	step  int64 // that it computes or calls with
	at    int
	m     Rank
	board Board
	snap  Board
	saved uint32 // by step
	done  bool
	dead  bool
}

type mshim struct {
	shim    Shim
	heard   int
	ack     uint64 // read by a look that has not read the step yet
	looking bool
}

// mknow leaves the step out: every target is tried anyway.
type mknow struct {
	settled       uint64
	answered, yes uint64
	why           string
}

type mstate struct {
	r    [3]mrank
	s    [3]mshim
	know [3]mknow
	log  []Proposal
}

func (m *mstate) clone() *mstate {
	c := *m
	c.log = slices.Clone(m.log)
	for i := range c.s {
		c.s[i].shim.answers = slices.Clone(c.s[i].shim.answers)
	}
	return &c
}

func (m *mstate) key(n int) xxh3.Uint128 {
	b := make([]byte, 0, 160)
	put := func(vs ...int64) {
		for _, v := range vs {
			b = binary.AppendVarint(b, v)
		}
	}
	flag := func(v bool) int64 {
		if v {
			return 1
		}
		return 0
	}
	for i := range n {
		r, s, k := &m.r[i], &m.s[i], &m.know[i]
		put(r.step, int64(r.at), int64(r.m.Acknowledged), int64(r.m.Settled), r.m.Target, int64(r.saved), flag(r.done), flag(r.dead))
		for _, x := range []Board{r.board, r.snap} {
			put(int64(x.Proposal), x.Target, int64(x.Verdict), int64(x.Word))
		}
		put(int64(s.heard), int64(s.ack), flag(s.looking), int64(len(s.shim.answers)))
		for _, a := range s.shim.answers {
			put(int64(a.Number), flag(a.Yes))
			b = append(b, a.Why...)
		}
		put(int64(k.settled), int64(k.answered), int64(k.yes))
		b = append(b, k.why...)
	}
	for _, p := range m.log {
		put(int64(p.Number), p.Target)
		b = append(b, p.State...)
	}
	return xxh3.Hash128(b)
}

// finding is what the checker found; found is empty when nothing is wrong.
type finding struct {
	states         int
	found          string
	agreed, passed int // agreed proposals that were acted on, refusals of those that passed
}

func (x exploration) run(limit int) finding {
	first := &mstate{}
	for i := range x.ranks {
		first.r[i].step = 1
	}
	seen := map[xxh3.Uint128]bool{first.key(x.ranks): true}
	queue := []*mstate{first}
	var f finding
	for len(queue) > 0 {
		m := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		progress := 0
		visit := func(c *mstate, counts bool) {
			if counts {
				progress++
			}
			k := c.key(x.ranks)
			if seen[k] {
				return
			}
			seen[k] = true
			if why := x.disagree(c); why != "" && f.found == "" {
				f.found = why
			}
			queue = append(queue, c)
		}
		x.ranksMove(m, &f, visit)
		x.shimsMove(m, &f, visit)
		x.leaderMoves(m, visit)
		if progress == 0 && f.found == "" {
			f.found = x.stuck(m)
		}
		if f.found != "" || len(seen) > limit {
			break
		}
	}
	f.states = len(seen)
	if f.states > limit && f.found == "" {
		f.found = fmt.Sprintf("more than %d states", limit)
	}
	return f
}

// disagree: two ranks that both have called with a step have done the same after it.
func (x exploration) disagree(m *mstate) string {
	for s := int64(1); s <= x.steps; s++ {
		saved, not := false, false
		for i := range x.ranks {
			r := &m.r[i]
			if called := r.step > s || r.done; !called {
				continue
			}
			if r.saved&(1<<s) != 0 {
				saved = true
			} else if !r.done || r.step > s || r.saved == 0 {
				not = true
			}
		}
		if saved && not {
			return fmt.Sprintf("after step %d some ranks save and others do not", s)
		}
	}
	return ""
}

// stuck: nothing can happen any more, and a rank holds, or one that lives has not ended
// and none is dead.
func (x exploration) stuck(m *mstate) string {
	dead := false
	for i := range x.ranks {
		dead = dead || m.r[i].dead
	}
	for i := range x.ranks {
		r := &m.r[i]
		if r.dead || r.done {
			continue
		}
		if r.at == published {
			return fmt.Sprintf("rank %d holds after step %d for ever", i, r.step)
		}
		if !dead {
			return fmt.Sprintf("rank %d waits in step %d for ever", i, r.step)
		}
	}
	return ""
}

func (x exploration) ranksMove(m *mstate, f *finding, visit func(*mstate, bool)) {
	died := false
	for i := range x.ranks {
		died = died || m.r[i].dead
	}
	for i := range x.ranks {
		r := &m.r[i]
		if r.dead || r.done {
			continue
		}
		if x.deaths && !died {
			c := m.clone()
			c.r[i].dead = true
			visit(c, false)
		}
		switch r.at {
		case computing:
			free := true
			for k := range x.ranks {
				o := &m.r[k]
				free = free && (!x.collect || o.step >= r.step && (!o.dead || o.step > r.step || o.at != computing))
			}
			if free {
				c := m.clone()
				c.r[i].at = published
				visit(c, true)
			}
		case published:
			c := m.clone()
			n := &c.r[i]
			n.at, n.snap = reading, r.board
			probe := r.m
			switch move := x.scheme.call(&probe, r.step, r.board); {
			case move == Hold: // it sees nothing new
			case move == Go && probe == r.m:
				x.calls(n, f) // it writes nothing: that takes no time
				visit(c, true)
			default:
				visit(c, true)
			}
		case reading:
			c := m.clone()
			x.calls(&c.r[i], f)
			visit(c, true)
		}
	}
}

// calls ends a call with what it had read.
func (x exploration) calls(n *mrank, f *finding) {
	move := x.scheme.call(&n.m, n.step, n.snap)
	n.at, n.snap = published, Board{}
	if move == Hold {
		return
	}
	if move != Go {
		n.saved |= 1 << n.step
		f.agreed++
	}
	n.done = move == SaveAndEnd || n.step == x.steps
	if !n.done {
		n.step++
	}
	n.at = computing
}

func (x exploration) shimsMove(m *mstate, f *finding, visit func(*mstate, bool)) {
	for i := range x.ranks {
		s, r := &m.s[i], &m.r[i]
		for k := s.heard; k < len(m.log); k++ {
			c := m.clone()
			c.s[i].heard = k + 1
			if b, changed := c.s[i].shim.Hear(m.log[k].Proposal, r.board); changed {
				c.r[i].board = b
			}
			visit(c, true)
		}
		if !s.shim.Open() || len(s.shim.answers) > 0 {
			continue
		}
		v := View{Step: r.step - 1, Calls: 2, Acknowledged: r.m.Acknowledged, Settled: r.m.Settled, Ended: r.dead || r.done}
		if r.at != computing {
			v.Step = r.step
		}
		probe := s.shim
		would := x.scheme.look(&probe, int64(i), v) // a look that begins now answers
		if !s.looking {
			c := m.clone()
			c.s[i].looking, c.s[i].ack = true, r.m.Acknowledged
			visit(c, would)
			continue
		}
		v.Acknowledged = s.ack
		end := func(v View) {
			c := m.clone()
			c.s[i].looking, c.s[i].ack = false, 0
			answered := x.scheme.look(&c.s[i].shim, int64(i), v)
			if answered && c.s[i].shim.answers[0].Why == WhyPassed {
				f.passed++
			}
			visit(c, answered || would)
		}
		end(v)
		if x.silence {
			v.Quiet = time.Hour
			end(v)
		}
	}
}

func (x exploration) leaderMoves(m *mstate, visit func(*mstate, bool)) {
	facts := Facts{Want: WantSave, Now: time.Unix(1<<40, 0), World: int64(x.ranks)}
	if x.stop {
		facts.Want = WantStop
	}
	if len(m.log) > 0 {
		facts.Last = &m.log[len(m.log)-1]
		facts.Number = facts.Last.Number
	}
	if facts.Number >= x.proposals {
		facts.Want = Nothing
	}
	for i := range x.ranks {
		r, k := &m.r[i], &m.know[i]
		// Only what the leader looks at now; the rest it hears later or never.
		var now mknow
		switch a := m.s[i].shim.answers; {
		case facts.Last == nil:
		case facts.Last.State == wire.ProposalAgreed && r.m.Settled >= facts.Last.Number:
			now.settled = r.m.Settled
		case facts.Last.State == wire.ProposalOpen && len(a) > 0 && a[0].Number == facts.Last.Number:
			now.answered, now.why = a[0].Number, a[0].Why
			if a[0].Yes {
				now.yes = a[0].Number
			}
		}
		if now != *k && now != (mknow{}) {
			c := m.clone()
			c.know[i] = now
			visit(c, true)
		}
		facts.Reports = append(facts.Reports, Report{Rank: int64(i), Bound: k.settled, Settled: k.settled})
		if k.answered > 0 {
			facts.Answers = append(facts.Answers, wire.RankAnswer{Rank: int64(i), Number: k.answered, Yes: k.yes == k.answered, Why: k.why})
		}
	}
	if m.know != [3]mknow{} {
		c := m.clone() // another leader, which has heard nothing yet
		c.know = [3]mknow{}
		visit(c, false)
	}
	d := Decide(facts)
	add := func(p Proposal) {
		c := m.clone()
		c.know = [3]mknow{}
		c.log = append(c.log, p)
		visit(c, true)
	}
	switch d.Action {
	case Propose:
		// Whatever the margin: every step may come out.
		for t := int64(1); t <= x.steps+1; t++ {
			p := d.Proposal
			p.Target = t
			add(p)
		}
	case Agree:
		p := *facts.Last
		p.State = wire.ProposalAgreed
		add(p)
	case Drop:
		add(facts.Last.Dropped(d.Code, d.Why))
	case Wait, Unable:
	}
}

const limit = 3_000_000

// TestExploreAgreement: whatever the order of events, no two ranks act differently after
// any step, and no rank holds for ever.
func TestExploreAgreement(t *testing.T) {
	all := []exploration{
		{ranks: 2, steps: 3, collect: true, proposals: 1, deaths: true},
		{ranks: 2, steps: 3, stop: true, proposals: 1, silence: true},
	}
	if !testing.Short() {
		all = append(all,
			exploration{ranks: 2, steps: 2, collect: true, proposals: 2},
			exploration{ranks: 3, steps: 2, collect: true, proposals: 1},
		)
	}
	for _, x := range all {
		x.scheme = real
		t.Run(fmt.Sprintf("%d ranks, %d steps, collective %v, stop %v, %d proposals", x.ranks, x.steps, x.collect, x.stop, x.proposals), func(t *testing.T) {
			f := x.run(limit)
			t.Logf("%d states, %d agreed saves, %d refusals of steps that were passed", f.states, f.agreed, f.passed)
			if f.found != "" {
				t.Error(f.found)
			}
			if f.agreed == 0 || f.passed == 0 {
				t.Error("the exploration never came to an agreement, or never to a refusal")
			}
		})
	}
}

// TestExploreFindsBadSchemes: the checker sees what is wrong with the two simpler schemes.
func TestExploreFindsBadSchemes(t *testing.T) {
	for name, x := range map[string]exploration{
		"broadcast":             {ranks: 2, steps: 3, collect: true, proposals: 1, scheme: broadcast},
		"hold without refusals": {ranks: 2, steps: 3, collect: true, proposals: 1, scheme: unrefused},
	} {
		f := x.run(limit)
		t.Logf("%s: after %d states: %s", name, f.states, f.found)
		if f.found == "" || f.states > limit {
			t.Errorf("%s: nothing was found", name)
		}
	}
}
