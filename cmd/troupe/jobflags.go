package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// jobFlags are the flags that describe a job.
type jobFlags struct {
	name, run, kind, workdir string
	ranks, least, perNode    int64
	sizes                    []int64
	strategy                 string
	r                        resourceFlags
	env                      []string
	envAll                   bool
	maxRestarts              int64
	excludeAfter             int64
	noExclude                bool
	stallKill                string
	every, store             string
	keep, from               int64
	keepEvery                int64
	keepBest                 string
	pg                       string
	bundles                  []int64
	pool, queue, tenant      string
	priority                 int64
	failureGrace, shutdown   time.Duration
	saveDeadline             time.Duration
	key                      string
	once                     bool
	noWarm                   bool
	spareNodes               int64
	lendSpares               bool
	role, runID              string // torchrun's
	virtualLocal             bool
	numaBinding              string
	wrap                     string
	sendDir                  string
	sendLimit                sizeFlag
	sent                     *packed // of sendDir
	wishes                   wishFlags
}

const noWarmHelp = "start ranks by exec, never by a fork of an interpreter that has imported torch"

func (o *jobFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "`name`: of the job (default from the command)")
	f.StringVar(&o.run, "run", "", "`name`: of the run, which owns the checkpoints (default the job's)")
	f.StringVar(&o.kind, "kind", "training", "`kind`: training, task, service or batch")
	o.ranks = 1
	f.VarP((*ranksFlag)(o), "ranks", "n", "`N`: ranks in all; MIN:MAX: as many as fit at the start, fewer after a loss")
	f.Int64SliceVar(&o.sizes, "sizes", nil, "`list`: of allowed numbers of ranks, as 2,4,8 (default --ranks alone)")
	f.Lookup("sizes").DefValue = ""
	f.Int64Var(&o.perNode, "ranks-per-node", 0, "`N`: ranks on each node, exactly (default what fits)")
	f.StringVar(&o.strategy, "strategy", "PACK", "`strategy`: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD")
	f.StringVar(&o.workdir, "workdir", "", "`folder`: that ranks start in (default the current one)")
	o.addSend(c)
	f.StringArrayVar(&o.env, "env", nil, "`NAME[=VALUE]`: for the ranks; may be repeated")
	f.BoolVar(&o.envAll, "env-all", false, "send the whole environment of this command")
	f.Int64Var(&o.maxRestarts, "max-restarts", 3, "`N`: restarts after failures of the script's own")
	f.Int64Var(&o.excludeAfter, "exclude-after", 3, "`N`: failures within an hour with one node as root cause keep the job off it for an hour")
	f.BoolVar(&o.noExclude, "no-exclude", false, "never keep off a node for its failures")
	f.StringVar(&o.stallKill, "stall-kill", "", "`time`: end an attempt that makes no step for so long; off: never (default learned from its pace, at least 10m)")
	f.StringVar(&o.every, "checkpoint-every", "", "`interval`: between saves: 300steps, 10m (at steps that all ranks agree on) or auto (what loses least)")
	f.StringVar(&o.every, "checkpoint-interval", "", "`interval`: the same")
	f.StringVar(&o.store, "checkpoint-store", "", "`store`: of the run's checkpoints: a folder, or s3://bucket/prefix?endpoint=URL&path-style=true (default the cluster's)")
	f.Int64Var(&o.keep, "keep-last", 3, "`N`: checkpoints to keep")
	f.DurationVar(&o.saveDeadline, "save-deadline", 10*time.Minute, "`time`: a checkpoint that takes longer is dropped, and the job goes on")
	f.Int64Var(&o.keepEvery, "keep-every", 0, "`N`: keep each checkpoint of a step that is a multiple besides")
	f.StringVar(&o.keepBest, "keep-best", "", "`metric:min|max:N`: keep the N best by a metric besides, as loss:min:2")
	f.Int64Var(&o.from, "from-step", 0, "`step`: roll later ones back and start from it")
	f.StringVar(&o.pg, "pg", "", "`group`: run in this placement group")
	f.Int64SliceVar(&o.bundles, "bundles", nil, "`list`: bundles of the ranks in --pg, as 0,1,2 (default in order)")
	f.StringVar(&o.wrap, "wrap", "", wrapUsage)
	f.StringVar(&o.pool, "pool", "", "`pool`: of nodes")
	f.StringVar(&o.queue, "queue", "", "`queue`: to wait in")
	f.StringVar(&o.tenant, "tenant", "", "`tenant`: to charge")
	f.Int64Var(&o.priority, "priority", 0, "`N`: higher goes first")
	f.DurationVar(&o.failureGrace, "failure-grace", 200*time.Millisecond, "`time`: what the other ranks get when one has failed")
	o.shutdown = 30 * time.Second
	f.Var((*span)(&o.shutdown), "shutdown-timeout", "`time`: between TERM and KILL at a stop")
	f.BoolVar(&o.lendSpares, "lend-spares", false, "let preemptible work use the spare nodes until they are needed")
	f.Int64Var(&o.spareNodes, "spare-nodes", 0, "`N`: nodes to hold beside those of the ranks; when one is lost its ranks start there at once")
	f.BoolVar(&o.noWarm, "no-warm", false, noWarmHelp)
	f.StringVar(&o.key, "idempotency-key", "", "`key`: a repeat under the same answers with the first job")
	f.BoolVar(&o.once, "once", false, "use a key made of the request itself: the same request is one job")
	for _, name := range []string{"ranks-per-node", "from-step", "bundles"} {
		f.Lookup(name).DefValue = "0" // the text says what none means
	}
	f.Lookup("bundles").DefValue = ""
	o.r.add(c)
	o.wishes.add(c)
}

// addSend adds the flags that send a folder along.
func (o *jobFlags) addSend(c *cobra.Command) {
	c.Flags().StringVar(&o.sendDir, "working-dir", "", workingDirUsage)
	c.Flags().Var(&o.sendLimit, "working-dir-limit", "`size`: of that folder at most")
}

// parseKeepBest reads loss:min:2.
func parseKeepBest(s string) (*api.KeepBest, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // none was asked for
	}
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append(parts, "1")
	}
	if len(parts) != 3 {
		return nil, usage("--keep-best %q: want METRIC:min|max:N, as loss:min:2", s)
	}
	n, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || n < 1 || parts[1] != "min" && parts[1] != "max" {
		return nil, usage("--keep-best %q: want METRIC:min|max:N, as loss:min:2", s)
	}
	return &api.KeepBest{Metric: parts[0], Mode: parts[1], Count: n}, nil
}

// storeAddress makes a folder's path absolute; other addresses stay as they are.
func storeAddress(store string) (string, error) {
	if store == "" || strings.Contains(store, "://") {
		return store, nil
	}
	path, err := filepath.Abs(store)
	if err != nil {
		return "", fmt.Errorf("find the store: %w", err)
	}
	return path, nil
}

// notSent are variables that people expect to reach ranks and that run does not send
// without being told.
var notSent = regexp.MustCompile(`^(NCCL_|CUDA_|HF_|WANDB_|PYTHONPATH$)`)

// spec builds the job's spec of flags and command.
func (a *app) spec(ctx context.Context, c *cobra.Command, o *jobFlags, command []string) (api.JobSpec, error) {
	var s api.JobSpec
	if len(command) == 0 {
		return s, fail(api.ExitUsage, "TRP-C064", "troupe run --ranks 4 -- python train.py", "no command: what is each rank to run?")
	}
	if o.once && o.key != "" {
		return s, usage("--once and --idempotency-key exclude each other")
	}
	var err error
	if s.Resources, err = o.r.resources(); err != nil {
		return s, err
	}
	if s.Strategy, err = parseStrategy(o.strategy); err != nil {
		return s, err
	}
	s.Name = o.name
	if s.Name == "" {
		s.Name = nameOf(command)
	}
	s.Kind, s.Run, s.Command = api.JobKind(o.kind), o.run, command
	s.Ranks, s.RanksPerNode = o.ranks, o.perNode
	if s.Ranks < 1 {
		return s, usage("--ranks %d: at least 1", s.Ranks)
	}
	for _, f := range []struct {
		name string
		zero bool
	}{
		{"keep-last", o.keep == 0}, {"save-deadline", o.saveDeadline == 0}, {"failure-grace", o.failureGrace == 0}, {"shutdown-timeout", o.shutdown == 0},
	} {
		if flag := c.Flags().Lookup(f.name); flag != nil && flag.Changed && f.zero {
			return s, usage("--%s cannot be 0: leave it out for the default, %s", f.name, flag.DefValue)
		}
	}
	if s.Sizes, err = o.allowed(c.Flags().Changed("ranks")); err != nil {
		return s, err
	}
	if s.Sizes != nil {
		s.Ranks = o.ranks
	}
	s.PlacementGroup, s.Bundles = strings.TrimPrefix(o.pg, "pg/"), o.bundles
	s.Pool, s.Queue, s.Tenant, s.Priority = o.pool, o.queue, o.tenant, o.priority
	if err := o.wishes.into(c, &s, time.Now()); err != nil {
		return s, err
	}
	s.Restart.User, s.Restart.StallKill = &o.maxRestarts, o.stallKill
	if o.noExclude {
		o.excludeAfter = 0
	}
	if o.noExclude || c.Flags().Changed("exclude-after") {
		s.Restart.ExcludeAfter = &o.excludeAfter
	}
	s.Checkpoint = api.CheckpointPolicy{Interval: o.every, KeepLast: o.keep}
	if s.Checkpoint.KeepBest, err = parseKeepBest(o.keepBest); err != nil {
		return s, err
	}
	s.Checkpoint.KeepEvery = o.keepEvery
	if s.Checkpoint.Store, err = storeAddress(o.store); err != nil {
		return s, err
	}
	if c.Flags().Changed("save-deadline") {
		s.Checkpoint.SaveDeadline = unit.Duration(o.saveDeadline)
	}
	if c.Flags().Changed("from-step") {
		s.Checkpoint.FromStep = &o.from
	}
	s.NoWarm, s.SpareNodes, s.LendSpares = o.noWarm, o.spareNodes, o.lendSpares
	s.FailureGrace, s.ShutdownTimeout = unit.Duration(o.failureGrace), unit.Duration(o.shutdown)
	s.Role, s.RunID, s.VirtualLocalRank, s.NumaBinding = o.role, o.runID, o.virtualLocal, o.numaBinding
	if s.Env, err = a.environment(o); err != nil {
		return s, err
	}
	wrap, err := wrapWords(o.wrap)
	if err != nil {
		return s, err
	}
	if err := a.place(ctx, &s, o, wrap, command); err != nil {
		return s, err
	}
	s.Command = slices.Concat(wrap, command)
	if first := s.Command[0]; a.nodesAreHere() && !strings.ContainsRune(first, '/') {
		// What this shell finds, not the one that ran `up`.
		if path, err := exec.LookPath(first); err == nil {
			s.Command[0] = path
		}
	}
	if s.PlacementGroup == "" && !c.Flags().Changed("gpus") && !c.Flags().Changed("gpu-share") {
		a.defaultGPUs(ctx, &s)
	}
	return s, nil
}

// place says where ranks start: in a folder of the nodes, or in a copy of one that is sent.
func (a *app) place(ctx context.Context, s *api.JobSpec, o *jobFlags, wrap, command []string) (err error) {
	if o.sendDir != "" {
		if o.sent, err = a.packFolder(ctx, o.sendDir, o.sendLimit); err != nil {
			return err
		}
		return a.usePackage(s, o.sent, o.workdir, wrap, command)
	}
	s.WorkingDir = o.workdir
	if s.WorkingDir == "" {
		if s.WorkingDir, err = os.Getwd(); err != nil {
			return fmt.Errorf("find the current folder: %w", err)
		}
	}
	if s.WorkingDir, err = filepath.Abs(s.WorkingDir); err != nil {
		return fmt.Errorf("find the folder: %w", err)
	}
	return checkWrapped(s.WorkingDir, wrap, command)
}

// environment collects what the ranks get, and names once what they do not.
func (a *app) environment(o *jobFlags) (map[string]string, error) {
	env := map[string]string{}
	if o.envAll {
		for _, kv := range os.Environ() {
			if k, v, ok := strings.Cut(kv, "="); ok && k != "" && !strings.HasPrefix(k, "TROUPE_") {
				env[k] = v
			}
		}
	}
	for _, kv := range o.env {
		k, v, set := strings.Cut(kv, "=")
		if k == "" {
			return nil, usage("--env %q: want NAME or NAME=VALUE", kv)
		}
		if !set {
			var ok bool
			if v, ok = os.LookupEnv(k); !ok {
				return nil, usage("--env %s: the variable is not set here", k)
			}
		}
		env[k] = v
	}
	var left []string
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		if _, sent := env[k]; notSent.MatchString(k) && !sent {
			left = append(left, k)
		}
	}
	if len(left) > 0 {
		slices.Sort(left)
		a.note("not sent to the ranks: %s; send with --env NAME or --env-all", strings.Join(left, ", "))
	}
	if len(env) == 0 {
		return nil, nil
	}
	return env, nil
}

// nameOf makes a name of the command: the script's, else the program's.
func nameOf(command []string) string {
	pick := filepath.Base(command[0])
	if script := scriptOf(command); script != "" {
		pick = strings.TrimSuffix(filepath.Base(script), ".py")
	} else if i := slices.Index(command, "-m"); i > 0 && i+1 < len(command) && strings.HasPrefix(pick, "python") {
		pick = command[i+1]
	}
	var b strings.Builder
	for _, r := range strings.ToLower(pick) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case r == '-' || r == '_' || r == '.':
			b.WriteRune('-')
		}
	}
	name := strings.Trim(b.String(), "-")
	if name == "" {
		name = "job"
	}
	return name[:min(len(name), 40)]
}

// checkCommand refuses what cannot start before anything is queued: a folder, a program
// or a script that is not there. Nodes are asked nothing; in this version they share
// this machine's files.
func checkCommand(dir string, command []string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return missing("name another with --workdir", "no folder %s", dir)
	case err == nil && !fi.IsDir():
		return missing("name another with --workdir", "%s is no folder", dir)
	}
	program := command[0]
	if strings.ContainsRune(program, '/') {
		if !filepath.IsAbs(program) {
			program = filepath.Join(dir, program)
		}
		if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
			return missing("check the path, or name its folder with --workdir", "no program %s", program)
		}
		if fi, err := os.Stat(program); err == nil && (fi.IsDir() || fi.Mode()&0o111 == 0) {
			return missing("chmod +x it, or run it by its interpreter", "%s is not executable", program)
		}
	} else if _, err := exec.LookPath(program); errors.Is(err, exec.ErrNotFound) {
		return missing("check the spelling and PATH, or write the whole path", "no program %s in PATH", program)
	}
	if script := scriptOf(command); script != "" {
		if !filepath.IsAbs(script) {
			script = filepath.Join(dir, script)
		}
		if _, err := os.Stat(script); errors.Is(err, os.ErrNotExist) {
			return missing("check the path, or name its folder with --workdir", "no script %s", script)
		}
	}
	return nil
}

// scriptOf finds the script in a command of Python; empty if there is none.
func scriptOf(command []string) string {
	if !strings.HasPrefix(filepath.Base(command[0]), "python") {
		return ""
	}
	for i := 1; i < len(command); i++ {
		switch w := command[i]; {
		case w == "-m" || w == "-c" || w == "-":
			return ""
		case w == "-W" || w == "-X":
			i++
		case !strings.HasPrefix(w, "-"):
			return w
		}
	}
	return ""
}

// defaultGPUs asks one GPU for each rank if the nodes have that many, and says so.
func (a *app) defaultGPUs(ctx context.Context, s *api.JobSpec) {
	cl, err := a.api()
	if err != nil {
		return
	}
	l, err := cl.Nodes(ctx, 0)
	if err != nil {
		return
	}
	var total int64
	for _, n := range l.Items {
		total += n.Capacity.GPUs
	}
	switch {
	case total == 0:
	case total >= s.Ranks:
		s.Resources.GPUs = 1
		a.note("asking for one GPU for each rank; --gpus 0 asks for none")
	default:
		a.note("asking for no GPU: the nodes have %d for %d ranks; --gpus asks", total, s.Ranks)
	}
}
