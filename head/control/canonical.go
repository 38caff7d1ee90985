package control

import (
	"fmt"
	"path/filepath"
	"sort"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/declare"
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/pack"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Limits of a job's spec; `troupe limits` and the documentation name them.
const (
	maxRanks   = gang.MaxRanks
	maxEnv     = 64 << 10
	maxArgv    = 128 << 10
	maxRestart = 1_000_000

	maxSaveDeadline = 24 * time.Hour
	defaultCPU      = unit.MilliCPU(10) // of each rank
)

// canonical fills defaults and checks a spec; every wrong field is named at once.
func canonical(s api.JobSpec) (api.JobSpec, []api.FieldError) {
	var errs []api.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	name := func(pointer, v string) {
		if !declare.IsName(v) {
			bad(pointer, "%q: 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends", cut(v, 80))
		}
	}
	def(&s.Kind, api.KindTraining)
	def(&s.Strategy, api.Pack)
	def(&s.Tenant, "default")
	def(&s.Queue, "default")
	def(&s.Ranks, 1)
	def(&s.FailureGrace, unit.Duration(200e6))
	def(&s.ShutdownTimeout, unit.Duration(30e9))
	if s.PlacementGroup == "" && s.Resources == (api.Resources{}) {
		// A bundle holds something; that much for whoever does not say what.
		s.Resources.CPU = defaultCPU
	}
	if s.Checkpoint.KeepLast == 0 {
		s.Checkpoint.KeepLast = 3
	}
	name("/name", s.Name)
	if s.Run != "" {
		name("/run", s.Run)
	}
	switch s.Kind {
	case api.KindTraining, api.KindTask, api.KindService, api.KindBatch, api.KindActor:
	default:
		bad("/kind", "%q: training, task, service, batch or actor", cut(string(s.Kind), 40))
	}
	if (s.Kind == api.KindActor) != (s.Actor != nil) {
		bad("/actor", "goes with kind actor, and only with it")
	}
	if s.Kind == api.KindActor && s.Ranks != 1 {
		bad("/ranks", "an actor has one rank, not %d", s.Ranks)
	}
	if s.Ranks < 1 || s.Ranks > maxRanks {
		bad("/ranks", "%d: 1 to %d", s.Ranks, maxRanks)
	}
	gang.CheckSizes(&s, bad)
	gang.CheckPerNode(&s, bad)
	checkSpares(s, bad)
	checkCommand(s, bad)
	checkRestart(s.Restart, bad)
	if _, err := plan.ParseInterval(s.Checkpoint.Interval); err != nil {
		bad("/checkpoint/interval", "%v", err)
	}
	if st := s.Checkpoint.Store; st != "" {
		if _, err := checkpoint.ParseStore(st); err != nil {
			bad("/checkpoint/store", "%v; an absolute, clean path or s3://bucket/prefix?endpoint=URL&path-style=true", err)
		}
	}
	if s.Checkpoint.KeepLast < 1 || s.Checkpoint.KeepLast > 1_000_000 {
		bad("/checkpoint/keepLast", "%d: at least 1", s.Checkpoint.KeepLast)
	}
	if d := s.Checkpoint.SaveDeadline; d != 0 && (d.D() < time.Second || d.D() > maxSaveDeadline) {
		bad("/checkpoint/saveDeadline", "%s: between 1s and %s", d, unit.Duration(maxSaveDeadline))
	}
	checkKeep(s.Checkpoint, bad)
	if f := s.Checkpoint.FromStep; f != nil && *f < 0 {
		bad("/checkpoint/fromStep", "%d: not negative", *f)
	}
	if s.FailureGrace < 0 || s.ShutdownTimeout < 0 {
		bad("/shutdownTimeout", "durations are not negative")
	}
	if s.Hosts != nil {
		checkHosts(&s, bad)
	}
	if s.PlacementGroup != "" && s.Resources != (api.Resources{}) {
		bad("/resources", "a job in a placement group uses its bundles; it asks for none of its own")
	}
	if len(s.Bundles) > 0 && (s.PlacementGroup == "" || int64(len(s.Bundles)) != s.Ranks) {
		bad("/bundles", "one for each rank, and only with placementGroup")
	}
	seen := map[int64]bool{}
	for i, b := range s.Bundles {
		if b < 0 || seen[b] {
			bad(fmt.Sprintf("/bundles/%d", i), "%d: not negative, and each bundle once", b)
		}
		seen[b] = true
	}
	if s.Owner != nil && (s.Owner.PID <= 1 || s.Owner.BootID == "") {
		bad("/owner", "a process id and the boot id of its machine")
	}
	return s, errs
}

func checkKeep(p api.CheckpointPolicy, bad func(string, string, ...any)) {
	if p.KeepEvery < 0 {
		bad("/checkpoint/keepEvery", "%d: not negative", p.KeepEvery)
	}
	b := p.KeepBest
	if b == nil {
		return
	}
	if err := checkpoint.ValidMetric(b.Metric); err != nil {
		bad("/checkpoint/keepBest/metric", "%v", err)
	}
	if b.Mode != "min" && b.Mode != "max" {
		bad("/checkpoint/keepBest/mode", "%q: min or max", cut(b.Mode, 40))
	}
	if b.Count < 1 || b.Count > 1_000_000 {
		bad("/checkpoint/keepBest/count", "%d: at least 1", b.Count)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

func checkCommand(s api.JobSpec, bad func(string, string, ...any)) {
	size := 0
	for i, a := range s.Command {
		size += len(a) + 1
		if containsNUL(a) {
			bad(fmt.Sprintf("/command/%d", i), "holds a NUL byte")
		}
	}
	switch {
	case len(s.Command) == 0 || s.Command[0] == "":
		bad("/command", "is empty: what is each rank to run?")
	case size > maxArgv:
		bad("/command", "%d bytes; at most %d", size, maxArgv)
	}
	w := s.WorkingDir
	switch {
	case s.Package != "" && !pack.ValidHash(s.Package):
		bad("/package", "%q: the SHA-256 of an uploaded folder, 64 hex digits", cut(s.Package, 80))
	case s.Package != "" && (s.Hosts != nil || s.Actor != nil):
		bad("/package", "goes with a job that runs a command, not with an actor or a launch over hosts")
	case s.Package != "" && w != "" && !filepath.IsLocal(w):
		bad("/workingDir", "%q is not below the root of the package", cut(w, 200))
	case s.Package == "" && w != "" && !filepath.IsAbs(w):
		bad("/workingDir", "%q is not absolute", cut(w, 200))
	}
	size = 0
	names := make([]string, 0, len(s.Env))
	for k := range s.Env {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		size += len(k) + len(s.Env[k]) + 2
		if k == "" || containsNUL(k) || containsNUL(s.Env[k]) || containsEquals(k) {
			bad("/env", "%q: a name without '=' or NUL", cut(k, 80))
		}
	}
	if size > maxEnv {
		bad("/env", "%d bytes; at most %d", size, maxEnv)
	}
}

func containsNUL(s string) bool    { return containsByte(s, 0) }
func containsEquals(s string) bool { return containsByte(s, '=') }

func containsByte(s string, b byte) bool {
	for i := range len(s) {
		if s[i] == b {
			return true
		}
	}
	return false
}

func checkRestart(r api.RestartPolicy, bad func(string, string, ...any)) {
	for _, f := range []struct {
		pointer string
		v       *int64
	}{
		{"/restart/maxRestarts", r.MaxRestarts},
		{"/restart/user", r.User},
		{"/restart/infrastructure", r.Infra},
		{"/restart/hang", r.Hang},
		{"/restart/excludeAfter", r.ExcludeAfter},
	} {
		if f.v != nil && (*f.v < 0 || *f.v > maxRestart) {
			bad(f.pointer, "%d: 0 to %d", *f.v, maxRestart)
		}
	}
	if _, err := plan.ParseStallKill(r.StallKill); err != nil {
		bad("/restart/stallKill", "%v", err)
	}
}

// groupSpecOf is the placement group that a job asks for: one bundle for each rank.
func groupSpecOf(s api.JobSpec) (api.GroupSpec, []api.FieldError) {
	g := api.GroupSpec{
		Name: s.Name, Strategy: s.Strategy, PerNode: s.RanksPerNode, Pool: s.Pool, Tenant: s.Tenant, Queue: s.Queue, Priority: s.Priority, Wishes: s.Wishes,
		Bundles: make([]api.Bundle, s.Ranks),
	}
	for i := range g.Bundles {
		g.Bundles[i].Resources = s.Resources
	}
	return g, schedule.Validate(g)
}
