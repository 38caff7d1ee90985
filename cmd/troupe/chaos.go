package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// chaosFlags are those of troupe chaos.
type chaosFlags struct {
	rank    int64
	node    string
	last    time.Duration
	point   string
	count   int
	every   time.Duration
	seed    uint64
	recover time.Duration
}

func (a *app) chaosCommand() *cobra.Command {
	var f chaosFlags
	words := make([]string, 0, len(api.FaultKinds))
	for _, k := range api.FaultKinds {
		words = append(words, string(k))
	}
	c := &cobra.Command{
		Use: "chaos JOB FAULT…", Short: "Harm your own job on purpose and report how it recovers", Args: cobra.MinimumNArgs(2),
		Long: `Injects faults into a running job, one after the other, waits after each until the job
trains again, and reports what was detected, how long it took, and what was lost. Exit
code 1 when the job did not recover, or a committed step went back.

  kill-rank   SIGKILL to the main process of a rank
  stop-rank   SIGSTOP to it, SIGCONT after --for
  at-save     SIGKILL to it when it passes --point of its next save
  kill-agent  SIGKILL to the agent of a node; whoever keeps it running starts it again
  kill-node   SIGKILL to the agent and everything that runs on its node
  fill-disk   the file system of the checkpoint store is full, for --for
  cut         the node cannot reach the head, for --for (root, iproute2, head elsewhere)`,
		Example:   "  troupe chaos @last kill-rank --yes\n  troupe chaos digits-7f3k2 kill-rank at-save --count 20 --every 30s --seed 7 --yes\n  troupe chaos digits-7f3k2 at-save --rank 2 --point written --yes -o json",
		ValidArgs: words,
		RunE: func(c *cobra.Command, args []string) error {
			return a.chaos(c, args[0], args[1:], f)
		},
	}
	l := c.Flags()
	l.Int64Var(&f.rank, "rank", -1, "`N`: the rank to strike (default a random one)")
	l.StringVar(&f.node, "node", "", "`name`: the node to strike (default a random one of the job)")
	l.DurationVar(&f.last, "for", 10*time.Second, "`time`: how long stop-rank, fill-disk and cut last")
	l.StringVar(&f.point, "point", string(api.SavePrepared), "`moment`: of at-save: begun, written, prepared")
	l.IntVar(&f.count, "count", 0, "`N`: faults in all, drawn from those named (default each once)")
	l.DurationVar(&f.every, "every", 0, "`time`: pause between a recovery and the next fault")
	l.Uint64Var(&f.seed, "seed", 0, "`N`: of what is drawn (default a new one, which is printed)")
	l.DurationVar(&f.recover, "recover-within", 2*time.Minute, "`time`: after which a job counts as not recovered")
	return c
}

// strike is one fault and what came of it, as the report shows it.
type strike struct {
	api.FaultResult
	// Noticed is what the head logged first, and after how long.
	Noticed      string        `json:"noticed,omitempty"`
	NoticedAfter unit.Duration `json:"noticedAfter,omitempty"`
	// RecoveredAfter is the time until every rank of the newest attempt trained again.
	RecoveredAfter unit.Duration `json:"recoveredAfter,omitempty"`
	Recovered      bool          `json:"recovered"`
	Restarts       int64         `json:"restarts"`
	// LostSteps were made and had to be made again.
	LostSteps int64  `json:"lostSteps"`
	Outcome   string `json:"outcome"`

	lasts time.Duration
}

// chaosReport is the whole answer.
type chaosReport struct {
	Job             string   `json:"job"`
	Seed            uint64   `json:"seed"`
	Strikes         []strike `json:"strikes"`
	CommittedBefore *int64   `json:"committedBefore,omitempty"`
	CommittedAfter  *int64   `json:"committedAfter,omitempty"`
	WentBack        bool     `json:"committedWentBack"`
	OK              bool     `json:"ok"`
}

func (a *app) chaos(c *cobra.Command, target string, words []string, f chaosFlags) error {
	kinds, err := faultKinds(words)
	if err != nil {
		return err
	}
	if f.count < 0 || f.every < 0 || f.recover <= 0 {
		return usage("--count and --every are not negative, --recover-within is above 0")
	}
	ctx, stop := a.interruptible(c.Context())
	defer stop()
	cl, id, err := a.apiFor(ctx, target)
	if err != nil {
		return err
	}
	j, err := cl.Job(ctx, id)
	if err != nil {
		return err
	}
	if !c.Flags().Changed("seed") {
		f.seed = rand.Uint64() >> 32
	}
	rng := rand.New(rand.NewPCG(f.seed, 0))
	if f.count == 0 {
		f.count = len(kinds)
	} else {
		drawn := make([]api.FaultKind, f.count)
		for i := range drawn {
			drawn[i] = kinds[rng.IntN(len(kinds))]
		}
		kinds = drawn
	}
	if err := a.confirm(fmt.Sprintf("job %s (%s, step %s, committed %s) would be harmed %s: %s",
		j.ID, plural(j.Spec.Ranks, "rank"), number(j.Step), number(j.Committed), plural(int64(f.count), "time"), strings.Join(words, ", "))); err != nil {
		return err
	}
	a.note("job %s, seed %d; Ctrl-C ends the faults, not the job", j.ID, f.seed)
	report := chaosReport{Job: j.ID, Seed: f.seed, CommittedBefore: j.Committed, OK: true}
	for i, kind := range kinds {
		if i > 0 && clock.Real().Sleep(ctx, f.every) != nil {
			break
		}
		s, err := a.strike(ctx, cl, j.ID, kind, &f, rng)
		if err != nil && ctx.Err() != nil && c.Context().Err() == nil {
			break
		}
		if err != nil {
			if len(report.Strikes) == 0 {
				return err
			}
			s.Outcome = clean(a.problemOf(err).Detail)
		}
		report.Strikes = append(report.Strikes, s)
		report.OK = report.OK && s.Recovered
		a.note("%d of %d: %s on %s: %s", i+1, len(kinds), kind, s.target(), s.Outcome)
		if !s.Recovered {
			break
		}
	}
	// The report of an interrupted series is a report all the same.
	last, stopLast := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stopLast()
	if now, err := cl.Job(last, j.ID); err == nil {
		report.CommittedAfter = now.Committed
	}
	report.WentBack = report.CommittedBefore != nil && (report.CommittedAfter == nil || *report.CommittedAfter < *report.CommittedBefore)
	report.OK = report.OK && !report.WentBack
	a.one(report, report.Job, func() { a.printChaos(&report) })
	switch {
	case report.WentBack:
		return &exitError{code: api.ExitFailed, text: "a committed step went back"}
	case !report.OK:
		return &exitError{code: api.ExitFailed, text: "the job did not recover"}
	case ctx.Err() != nil && c.Context().Err() == nil:
		return &exitError{code: api.ExitInterrupted, text: "interrupted; job " + j.ID + " goes on"}
	}
	return nil
}

func faultKinds(words []string) ([]api.FaultKind, error) {
	names := make([]string, 0, len(api.FaultKinds))
	for _, k := range api.FaultKinds {
		names = append(names, string(k))
	}
	var out []api.FaultKind
	for _, w := range words {
		if !slices.Contains(names, w) {
			return nil, usage("unknown fault %q; one of %s%s", w, strings.Join(names, ", "), didYouMean(w, names))
		}
		out = append(out, api.FaultKind(w))
	}
	return out, nil
}
