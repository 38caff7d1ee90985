package control

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// stackTime is how long the nodes have to say where their ranks stand.
	stackTime = 5 * time.Second
	// diagnosisTime is how long a stall that is to end its attempt waits for its diagnosis.
	diagnosisTime = 10 * time.Second
	maxStackKept  = 1 << 10 // bytes of a stack in the log
	maxGroupsKept = 8
)

// Stacks asks every rank of a job's live attempt where it stands.
func (h *Head) Stacks(ctx context.Context, id string) (api.Stacks, error) {
	if err := h.leader(); err != nil {
		return api.Stacks{}, err
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Stacks{}, h.problemOf(err)
	}
	last := j.Last()
	if last == nil || last.Ended != 0 || j.State.Terminal() {
		p := problem(409, "TRP-A409", api.ExitConflict, "conflict", "job %s is %s and has no rank that runs", j.ID, j.State)
		p.Help = "troupe job failures " + j.ID
		return api.Stacks{}, p
	}
	ranks, missing := h.stacksOf(ctx, v, last)
	return api.Stacks{
		Job: j.ID, Attempt: last.Number, Generation: last.Generation, Groups: groupStacks(ranks), Missing: missing, Time: h.Clock.Now().UTC(),
	}, nil
}

// stacksOf asks the nodes of an attempt at once; missing says who did not answer.
func (h *Head) stacksOf(ctx context.Context, v *state.View, a *state.Attempt) (ranks []wire.RankStack, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, stackTime)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, id := range a.Allocs {
		al := v.Alloc(id)
		if al == nil || al.Generation != a.Generation || al.Gone {
			continue
		}
		wg.Go(func() {
			got, err := h.askStacks(ctx, al.Node, wire.AskStacks{Alloc: id, Generation: a.Generation})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, fmt.Sprintf("%s of node %s: %v", ranksText(al.Ranks), nodeName(v, al.Node), err))
				return
			}
			ranks = append(ranks, got...)
		})
	}
	wg.Wait()
	slices.SortFunc(ranks, func(a, b wire.RankStack) int { return cmp.Compare(a.Rank, b.Rank) })
	slices.Sort(missing)
	return ranks, missing
}

func (h *Head) askStacks(ctx context.Context, node string, q wire.AskStacks) ([]wire.RankStack, error) {
	data, err := wire.Marshal(q)
	if err != nil {
		return nil, err
	}
	raw, err := h.Bus.Request(ctx, wire.NodeStacks(node), data)
	if err != nil {
		return nil, err
	}
	var r wire.RankStacks
	if err := wire.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, fmt.Errorf("%s", cut(r.Error, 200))
	}
	return r.Ranks, nil
}

func ranksText(ranks []wire.RankSpec) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0].Rank)
	}
	parts := make([]string, 0, len(ranks))
	for _, r := range ranks[:min(len(ranks), 8)] {
		parts = append(parts, fmt.Sprint(r.Rank))
	}
	if more := len(ranks) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return "ranks " + strings.Join(parts, ", ")
}

// groupStacks puts ranks that stand at the same place together, the largest group first.
func groupStacks(ranks []wire.RankStack) []api.StackGroup {
	at := map[string]int{}
	out := []api.StackGroup{}
	for _, r := range ranks {
		state := r.State
		if !stuck(state) {
			state = "" // running or sleeping is chance
		}
		key := state + "\n" + r.Stack
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, api.StackGroup{State: cut(r.State, 40), Stack: cut(r.Stack, 4<<10)})
		}
		out[i].Ranks = append(out[i].Ranks, r.Rank)
	}
	slices.SortStableFunc(out, func(a, b api.StackGroup) int { return cmp.Compare(len(b.Ranks), len(a.Ranks)) })
	return out
}

// stuck: the process is stopped, waits for a disk, or has ended.
func stuck(state string) bool { return state != "" && strings.Contains("TtDZX", state[:1]) }

// diagnose finds out, once for each stall, which ranks hold the others up.
func (h *Head) diagnose(ctx context.Context) {
	v := h.Store.View()
	for _, j := range v.LiveJobs() {
		last := j.Last()
		if last == nil || last.Ended != 0 || last.Pace.Since == 0 || last.Stall != nil || h.heard(v, last).excused {
			continue
		}
		h.ck.once(ctx, fmt.Sprintf("stall/%s/%d", j.ID, last.Generation), func() {
			ranks, missing := h.stacksOf(ctx, v, last)
			if ctx.Err() != nil {
				return
			}
			h.try(ctx, state.KindStall, h.diagnosis(v, j, last, ranks, missing))
			h.Kick()
		})
	}
}

// diagnosis says in a sentence who is furthest behind and where the ranks stand.
func (h *Head) diagnosis(v *state.View, j *state.Job, last *state.Attempt, ranks []wire.RankStack, missing []string) state.StallFound {
	groups := groupStacks(ranks)
	found := state.StallFound{Job: j.ID, Generation: last.Generation, Slowest: slowest(ranks)}
	node := map[int64]string{}
	for _, r := range last.Ranks {
		node[r.Rank] = nodeName(v, r.Node)
	}
	text := "no step for longer than its pace allows"
	for _, id := range last.Allocs {
		if a := v.Alloc(id); a != nil && a.StalledAt != 0 && a.StallText != "" {
			text = a.StallText
			break
		}
	}
	if len(found.Slowest) > 0 {
		first := found.Slowest[0]
		text = fmt.Sprintf("rank %d on %s holds the others up", first, node[first])
		if n := len(found.Slowest); n > 1 {
			text = fmt.Sprintf("ranks %d on %s and %d more hold the others up", first, node[first], n-1)
		}
		for _, r := range ranks {
			if r.Rank == first {
				text += fmt.Sprintf(" at step %d: %s", r.Step, where(r))
			}
		}
	}
	for _, g := range groups[:min(len(groups), 3)] {
		if len(found.Slowest) == 0 || !slices.Equal(g.Ranks, found.Slowest) {
			text += fmt.Sprintf("; %d stand in %s", len(g.Ranks), where(wire.RankStack{State: g.State, Stack: g.Stack}))
		}
	}
	if len(missing) > 0 {
		text += "; not asked: " + missing[0]
	}
	found.Text = text
	for _, g := range groups[:min(len(groups), maxGroupsKept)] {
		g.Stack = cut(g.Stack, maxStackKept)
		found.Stacks = append(found.Stacks, g)
	}
	return found
}

// slowest are the ranks that the others wait for: those with the lowest step; where all
// are at one step, those whose process is stuck, else those whose stack parts from that of
// most. Nil: they cannot be told apart.
func slowest(ranks []wire.RankStack) []int64 {
	if len(ranks) == 0 {
		return nil
	}
	low, high := ranks[0].Step, ranks[0].Step
	for _, r := range ranks {
		low, high = min(low, r.Step), max(high, r.Step)
	}
	var out []int64
	for _, r := range ranks {
		if low < high && r.Step == low {
			out = append(out, r.Rank)
		}
	}
	if len(out) == 0 {
		for _, r := range ranks {
			if stuck(r.State) {
				out = append(out, r.Rank)
			}
		}
	}
	if len(out) == 0 {
		out = apart(ranks)
	}
	if len(out) == len(ranks) && len(ranks) > 1 {
		return nil
	}
	return out
}

// apart are the ranks whose stack parts first from that of most others, from the outermost
// call on. Further in, ranks that wait are caught anywhere in their waiting: a rank whose
// stack ends before another's is not compared with it there, and where several end, only the
// function counts and not its line.
func apart(ranks []wire.RankStack) []int64 {
	type stack struct {
		rank   int64
		frames []string // outermost first
	}
	left := make([]stack, 0, len(ranks))
	for _, r := range ranks {
		left = append(left, stack{r.Rank, frames(r.Stack)})
	}
	for depth := 0; len(left) > 1; depth++ {
		at, calling := map[string][]int64{}, map[string]bool{}
		for _, s := range left {
			if depth < len(s.frames)-1 {
				calling[s.frames[depth]] = true
			}
		}
		var most string
		next := left[:0]
		for _, s := range left {
			if depth >= len(s.frames) {
				continue
			}
			next = append(next, s)
			f := s.frames[depth]
			if depth == len(s.frames)-1 && !calling[f] {
				f = noLine.ReplaceAllString(f, "")
			}
			if at[f] = append(at[f], s.rank); len(at[f]) > len(at[most]) {
				most = f
			}
		}
		left = next
		if len(at) < 2 {
			continue
		}
		if 2*len(at[most]) <= len(left) {
			return nil
		}
		var out []int64
		for f, list := range at {
			if f != most {
				out = append(out, list...)
			}
		}
		slices.Sort(out)
		return out
	}
	return nil
}

var noLine = regexp.MustCompile(`line \d+`)

// frames are the calls that a stack names of its first thread, outermost first.
func frames(stack string) []string {
	var out []string
	for line := range strings.SplitSeq(stack, "\n") {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Thread ") && len(out) > 0 {
			break
		}
		if strings.HasPrefix(line, "File ") || strings.HasPrefix(line, "waits in ") {
			out = append(out, line)
		}
	}
	slices.Reverse(out)
	return out
}

// where is the innermost place that a stack names, in a few words.
func where(r wire.RankStack) string {
	if stuck(r.State) {
		return "its process is in state " + r.State
	}
	for line := range strings.SplitSeq(r.Stack, "\n") {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "File "); ok {
			file, at, _ := strings.Cut(rest, ", ")
			file = strings.Trim(file, `"`)
			return fmt.Sprintf("%s, %s", file[strings.LastIndexByte(file, '/')+1:], at)
		}
		if rest, ok := strings.CutPrefix(line, "waits in "); ok {
			return "the kernel's " + rest
		}
	}
	return "an unknown place"
}

// overdue says which allocation is to blame for a stall that has lasted for as long as one
// may. Before its diagnosis is there nothing is ended, unless it does not come.
func (h *Head) overdue(v *state.View, last *state.Attempt) (alloc string, rank int64, text string) {
	for _, id := range last.Allocs {
		a := v.Alloc(id)
		if a == nil || !a.Overdue || a.Generation != last.Generation {
			continue
		}
		if h.heard(v, last).excused {
			return "", -1, "" // the others wait for it
		}
		if last.Stall == nil && h.Clock.Now().Sub(time.Unix(0, a.StalledAt)) < diagnosisTime {
			return "", -1, ""
		}
		alloc, rank, text = id, a.SlowRank, orElse(a.StallText, "its ranks make no step")
		break
	}
	if alloc == "" || last.Stall == nil || len(last.Stall.Slowest) == 0 {
		return alloc, rank, text
	}
	for _, r := range last.Ranks {
		if r.Rank == last.Stall.Slowest[0] {
			return r.Alloc, r.Rank, "stalled: " + last.Stall.Text
		}
	}
	return alloc, rank, text
}
