package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/pack"
)

// Bounds of what a request may name (`troupe limits`). Whether it makes sense for this
// cluster is the backend's to say; here is only what nothing may exceed anywhere.
const (
	maxName       = 63   // characters of a name
	maxPath       = 4096 // bytes of a path or a run
	maxEnv        = 64 << 10
	maxLabels     = 32
	maxLabel      = 256 // bytes of a label's key and value together
	maxRanks      = 4096
	maxBundles    = 10000
	maxCommand    = 128 << 10 // bytes of argv
	maxActorArgs  = 256 << 10
	maxReason     = 200
	maxIdempotent = 128
)

// checks collects what is wrong with a request.
type checks struct{ errs []api.FieldError }

func (c *checks) add(pointer, format string, args ...any) {
	if len(c.errs) < maxFieldErrors {
		c.errs = append(c.errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
}

func (c *checks) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	// Maps have no order, answers have one.
	slices.SortStableFunc(c.errs, func(a, b api.FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return invalid(c.errs)
}

// text refuses control characters, which terminals and logs would act on.
func (c *checks) text(pointer, s string, most int) {
	if n := utf8.RuneCountInString(s); n > most {
		c.add(pointer, "has %d characters; the limit is %d", n, most)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		c.add(pointer, "has control characters in it")
	}
}

func (c *checks) natural(pointer string, n, most int64) {
	switch {
	case n < 0:
		c.add(pointer, "is %d; it cannot be negative", n)
	case n > most:
		c.add(pointer, "is %d; the limit is %d", n, most)
	}
}

// quantity bounds sums: a thousand times the largest value must still fit in 64 bits.
func (c *checks) quantity(pointer string, n int64) { c.natural(pointer, n, 1<<50) }

func (c *checks) resources(pointer string, r api.Resources) {
	c.quantity(pointer+"/cpu", int64(r.CPU))
	c.quantity(pointer+"/memory", int64(r.Memory))
	c.natural(pointer+"/gpus", r.GPUs, 1024)
	c.natural(pointer+"/share", r.Share, 1000)
	c.quantity(pointer+"/gpuMemory", int64(r.GPUMemory))
	if r.GPUs > 0 && (r.Share > 0 || r.GPUMemory > 0) {
		c.add(pointer+"/gpus", "asks for whole devices and for a share of one; give one of the two")
	}
}

func (c *checks) strategy(pointer string, s api.Strategy) {
	known := []string{string(api.Pack), string(api.Spread), string(api.StrictPack), string(api.StrictSpread)}
	if s == "" || slices.Contains(known, string(s)) {
		return
	}
	c.add(pointer, "%.40q is no strategy%s", s, suggestion(string(s), known))
}

func (c *checks) group(g api.GroupSpec) error {
	c.text("/name", g.Name, maxName)
	c.text("/pool", g.Pool, maxName)
	c.text("/tenant", g.Tenant, maxName)
	c.text("/queue", g.Queue, maxName)
	c.strategy("/strategy", g.Strategy)
	switch n := len(g.Bundles); {
	case n == 0:
		c.add("/bundles", "is empty; a placement group holds at least one bundle")
	case n > maxBundles:
		c.add("/bundles", "has %d bundles; the limit is %d", n, maxBundles)
	}
	for i, b := range g.Bundles {
		at := "/bundles/" + strconv.Itoa(i)
		c.resources(at, b.Resources)
		if len(b.Labels) > maxLabels {
			c.add(at+"/labels", "has %d labels; the limit is %d", len(b.Labels), maxLabels)
		}
		for k, v := range b.Labels {
			if len(k)+len(v) > maxLabel {
				c.add(child(at+"/labels", k), "is longer than the limit of %d bytes", maxLabel)
			}
		}
	}
	return c.err()
}

func (c *checks) job(j api.JobSpec) error {
	c.text("/name", j.Name, maxName)
	c.text("/role", j.Role, maxName)
	c.text("/runId", j.RunID, maxPath)
	c.text("/run", j.Run, maxPath)
	c.text("/pool", j.Pool, maxName)
	c.text("/tenant", j.Tenant, maxName)
	c.text("/queue", j.Queue, maxName)
	c.text("/workingDir", j.WorkingDir, maxPath)
	if j.Package != "" && !pack.ValidHash(j.Package) {
		c.add("/package", "%.80q is no SHA-256 in 64 hex digits", j.Package)
	}
	c.text("/restart/stallKill", j.Restart.StallKill, 32)
	c.text("/checkpoint/store", j.Checkpoint.Store, maxPath)
	c.strategy("/strategy", j.Strategy)
	if b := j.NumaBinding; b != "" && !slices.Contains(api.NumaBindings, b) {
		c.add("/numaBinding", "%.40q is no way to bind ranks to CPUs%s", b, suggestion(b, api.NumaBindings))
	} else if r := j.Resources; b != "" && r.GPUs == 0 && r.Share == 0 && j.PlacementGroup == "" && j.Hosts == nil {
		c.add("/numaBinding", "binds each rank to the CPUs near its GPU, and the ranks ask for none; ask for one each (--gpus 1), or leave it out")
	}
	if len(j.Data) > maxLabels {
		c.add("/data", "has %d labels; the limit is %d", len(j.Data), maxLabels)
	}
	for i, d := range j.Data {
		c.text("/data/"+strconv.Itoa(i), d, maxLabel)
	}
	c.kind(j.Kind)
	c.natural("/ranks", j.Ranks, maxRanks)
	c.sizes(j.Sizes)
	c.natural("/ranksPerNode", j.RanksPerNode, maxRanks)
	c.natural("/checkpoint/keepLast", j.Checkpoint.KeepLast, 1<<20)
	c.resources("/resources", j.Resources)
	if len(j.Bundles) > maxBundles {
		c.add("/bundles", "has %d bundles; the limit is %d", len(j.Bundles), maxBundles)
	}
	for i, b := range j.Bundles {
		c.natural("/bundles/"+strconv.Itoa(i), b, maxBundles-1)
	}
	c.command(j)
	c.env(j.Env)
	for name, n := range map[string]*int64{
		"maxRestarts": j.Restart.MaxRestarts, "user": j.Restart.User, "infrastructure": j.Restart.Infra, "hang": j.Restart.Hang,
		"excludeAfter": j.Restart.ExcludeAfter,
	} {
		if n != nil {
			c.natural("/restart/"+name, *n, 1<<31)
		}
	}
	if j.Checkpoint.FromStep != nil {
		c.natural("/checkpoint/fromStep", *j.Checkpoint.FromStep, 1<<62)
	}
	if j.Actor != nil && len(j.Actor.Args) > maxActorArgs {
		c.add("/actor/args", "has %d bytes; the limit is %d", len(j.Actor.Args), maxActorArgs)
	}
	return c.err()
}

// sizes bounds the numbers of ranks that a job may be given.
func (c *checks) sizes(s *api.Sizes) {
	if s == nil {
		return
	}
	c.natural("/sizes/min", s.Min, maxRanks)
	c.natural("/sizes/max", s.Max, maxRanks)
	c.natural("/sizes/multiple", s.Multiple, maxRanks)
	if len(s.Set) > maxRanks {
		c.add("/sizes/set", "has %d sizes; the limit is %d", len(s.Set), maxRanks)
		return
	}
	for i, n := range s.Set {
		if n < 1 || n > maxRanks || i > 0 && n <= s.Set[i-1] {
			c.add("/sizes/set/"+strconv.Itoa(i), "is %d; 1 to %d, in ascending order", n, maxRanks)
		}
	}
}

func (c *checks) kind(k api.JobKind) {
	known := []string{string(api.KindTraining), string(api.KindTask), string(api.KindService), string(api.KindBatch), string(api.KindActor)}
	if k == "" || slices.Contains(known, string(k)) {
		return
	}
	c.add("/kind", "%.40q is no kind of job%s", k, suggestion(string(k), known))
}

func (c *checks) command(j api.JobSpec) {
	if len(j.Command) == 0 && j.Actor == nil {
		c.add("/command", "is empty; it is the program that each rank runs, and its arguments")
	}
	total := 0
	for i, arg := range j.Command {
		total += len(arg)
		if strings.ContainsRune(arg, 0) {
			c.add("/command/"+strconv.Itoa(i), "has a NUL byte in it")
		}
	}
	if total > maxCommand {
		c.add("/command", "has %d bytes; the limit is %d", total, maxCommand)
	}
}

func (c *checks) env(env map[string]string) {
	total := 0
	for k, v := range env {
		total += len(k) + len(v) + 2
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			c.add(child("/env", k), "is no variable that a process can have")
		}
	}
	if total > maxEnv {
		c.add("/env", "has %d bytes; the limit is %d", total, maxEnv)
	}
}
