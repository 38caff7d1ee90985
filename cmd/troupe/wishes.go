package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// longFlag takes a duration in hours, days or weeks too, as 90m, 12h or 2d.
type longFlag unit.Duration

// String is the value as it is typed.
func (l *longFlag) String() string {
	if *l == 0 {
		return ""
	}
	return unit.Duration(*l).String()
}

// Type is a word for help.
func (l *longFlag) Type() string { return "duration" }

// Set reads a duration.
func (l *longFlag) Set(s string) error {
	d, err := unit.ParseDuration(s)
	if err != nil {
		return err
	}
	if d < 0 {
		return fmt.Errorf("%q is negative", s)
	}
	*l = longFlag(d)
	return nil
}

// wishFlags say where and when a job is to run.
type wishFlags struct {
	where, uses, data             []string
	wholeNodes, preemptible, hold bool
	level, preferLevel, deadline  string
	timeLimit, estimate, maxWait  longFlag
	reservation                   string
}

func (o *wishFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&o.where, "where", nil, "`rule`: for the labels of its nodes: KEY=VALUE, KEY!=VALUE, KEY=A,B (one of them) or KEY!=A,B; may be repeated")
	f.BoolVar(&o.wholeNodes, "whole-nodes", false, "nothing else runs on its nodes")
	f.StringVar(&o.level, "level", "", "`level`: of the topology that all ranks share, as rack")
	f.StringVar(&o.preferLevel, "prefer-level", "", "`level[:WAIT]`: share it if that costs no longer wait than this (default 0s), as rack:10m")
	f.BoolVar(&o.preemptible, "preemptible", false, "may be ended, with a checkpoint, for more important work, and may use what is not guaranteed to its tenant")
	f.Var(&o.timeLimit, "time", "`time`: after which the job is ended, as 90m or 2d")
	f.Var(&o.estimate, "estimate", "`time`: that it is expected to run (default --time, else as its last runs)")
	f.StringVar(&o.deadline, "deadline", "", "`time`: when it is to have ended, as 2030-05-01T12:00:00Z or 6h from now")
	f.Var(&o.maxWait, "max-wait", "`time`: after which it waits no longer behind others")
	f.StringVar(&o.reservation, "reservation", "", "`name`: of the reservation that it runs in")
	f.StringSliceVar(&o.uses, "uses", nil, "`amounts`: of capacities that each rank takes, as storage=80MiB")
	f.StringSliceVar(&o.data, "data", nil, "`labels`: of data sets and models that it reads")
	f.BoolVar(&o.hold, "hold", false, "do not start before troupe job release")
	for _, name := range []string{"where", "uses", "data", "time", "estimate", "max-wait"} {
		f.Lookup(name).DefValue = ""
	}
}

// into puts what was given into a spec.
func (o *wishFlags) into(c *cobra.Command, s *api.JobSpec, now time.Time) error {
	set := c.Flags().Changed
	for _, w := range o.where {
		rule, err := parseRule(w)
		if err != nil {
			return err
		}
		s.Where = append(s.Where, rule)
	}
	if set("whole-nodes") {
		s.WholeNodes = o.wholeNodes
	}
	if set("level") && set("prefer-level") {
		return usage("--level demands what --prefer-level wishes; give one of them")
	}
	if set("level") {
		s.Level, s.LevelWait = o.level, nil
	}
	if set("prefer-level") {
		name, wait, timed := strings.Cut(o.preferLevel, ":")
		d := unit.Duration(0)
		if timed {
			var err error
			if d, err = unit.ParseDuration(wait); err != nil || d < 0 {
				return usage("--prefer-level %q: want LEVEL or LEVEL:WAIT, as rack:10m", o.preferLevel)
			}
		}
		s.Level, s.LevelWait = name, &d
	}
	if set("preemptible") {
		s.Preemptible = o.preemptible
	}
	if set("time") {
		s.TimeLimit = unit.Duration(o.timeLimit)
	}
	if set("estimate") {
		s.Estimate = unit.Duration(o.estimate)
	}
	if set("max-wait") {
		s.MaxWait = unit.Duration(o.maxWait)
	}
	if set("deadline") {
		at, err := parseWhen(o.deadline, now)
		if err != nil {
			return usage("--deadline %v", err)
		}
		s.Deadline = at
	}
	if set("reservation") {
		s.Reservation = o.reservation
	}
	uses, err := parseAmounts("uses", o.uses)
	if err != nil {
		return err
	}
	for _, u := range uses {
		s.Uses = s.Uses.With(u.Of, u.N)
	}
	if set("data") {
		s.Data = o.data
	}
	if set("hold") {
		s.Hold = o.hold
	}
	return nil
}

// parseRule reads KEY=VALUE, KEY!=VALUE and lists of values.
func parseRule(s string) (api.LabelRule, error) {
	key, values, ok := strings.Cut(s, "=")
	op := "="
	if k, not := strings.CutSuffix(key, "!"); not {
		key, op = k, "!="
	}
	if !ok || key == "" || values == "" {
		return api.LabelRule{}, usage("--where %q: want KEY=VALUE, KEY!=VALUE, KEY=A,B or KEY!=A,B", s)
	}
	list := strings.Split(values, ",")
	if len(list) > 1 {
		op = map[string]string{"=": "in", "!=": "notin"}[op]
	}
	return api.LabelRule{Key: key, Op: op, Values: list}, nil
}

// parseWhen reads a time, or how long it is until then.
func parseWhen(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC(), nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t.UTC(), nil
		}
	}
	d, err := unit.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q: want a time, as 2030-05-01T12:00:00Z or 2030-05-01 14:00, or how long from now, as 6h", s)
	}
	return now.Add(d.D()).UTC().Truncate(time.Second), nil
}

// timeText is a time to come, for people and programs alike.
func (a *app) timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// soon is a time that is expected: to the minute of the reader's own clock, for it is no
// more exact than that; programs get it whole.
func (a *app) soon(t time.Time) string {
	if t.IsZero() || !a.isTTY() || a.format == "wide" {
		return a.timeText(t)
	}
	t = t.Local()
	if d := time.Until(t); d > 20*time.Hour || d < -4*time.Hour {
		return t.Format("Jan _2 15:04")
	}
	return t.Format("15:04")
}
