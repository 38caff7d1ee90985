package warm

import (
	"slices"
	"strings"
)

// Preload is what every forkserver imports first. The second is what the first optimiser
// or DistributedDataParallel would import late; with it nothing else of torch is.
var Preload = []string{"torch", "torch._dynamo"}

// Spec is what a forkserver is started for, and so what it can stand in for.
type Spec struct {
	Tenant  string
	UID     int
	Program string   // the interpreter's file
	Command Command  // Args: of whoever started it; they may differ
	Dir     string   // working folder: modules may remember it
	Env     []string // NAME=value of a rank
	// Label is what its script is remembered by; empty: its path.
	Label string `json:",omitempty"`
}

// Name is what the script is remembered by.
func (s *Spec) Name() string {
	if s.Label != "" {
		return s.Label
	}
	return s.Command.Name(s.Dir)
}

// own are variables that differ between the ranks of a job, its attempts, or two jobs, and
// so can be no part of what ranks share. A module that reads one while it is imported
// cannot be preloaded. Those of Troupe's own begin with TROUPE_.
var own = []string{
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
	"ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
	"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
	"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE", "CUDA_VISIBLE_DEVICES",
	"TROUPE_JOB", "TROUPE_RUN", "TROUPE_ATTEMPT", "TROUPE_GENERATION", "TROUPE_SOCKET", "TROUPE_COOKIE",
}

// native begin the names of variables that libraries of C read when they are loaded, which
// no interpreter can watch. PYTHON and the locale are the interpreter's own.
var native = []string{
	"LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_",
	"DNNL_", "ONEDNN_", "TBB_", "ATEN_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "GLOO_",
	"HIP_", "HSA_", "ROC", "AMD_", "PYTHON", "LC_", "LANG", "TZ", "PATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "CONDA_",
}

// exact are variables with which the interpreter says or does something while it imports
// that a fork would not.
var exact = []string{"PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONDUMPREFS", "PYTHONTRACEMALLOC"}

// Own lists the variables of a rank alone.
func Own() []string { return slices.Clone(own) }

func isOwn(name string) bool { return slices.Contains(own, name) || strings.HasPrefix(name, "TROUPE_") }

// cookie marks the processes of an allocation; a forkserver is one.
const cookie = "TROUPE_COOKIE"

// Unfit names a variable of the environment with which no forkserver can stand in for a
// start, "" if there is none.
func Unfit(env []string) string {
	for _, e := range env {
		if k, v, _ := strings.Cut(e, "="); v != "" && slices.Contains(exact, k) {
			return k
		}
	}
	return ""
}

// Threads names the variable that has to be 1 for numpy to start no thread at import, which
// a fork would lose; "" when it is. Its wheels come with OpenBLAS, which reads them in this
// order and takes all cores when none is set.
func Threads(env []string) string {
	m := asMap(env)
	for _, k := range []string{"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"} {
		switch m[k] {
		case "1":
			return ""
		case "":
		default:
			return k
		}
	}
	return "OMP_NUM_THREADS"
}

// Environ is the environment of the forkserver: a rank's without what is a rank's own, with
// the folder of the way in first on PYTHONPATH.
func (s *Spec) Environ(hook, socket string) []string {
	var out []string
	path := hook
	for _, e := range s.Env {
		k, v, _ := strings.Cut(e, "=")
		switch {
		case k == "PYTHONPATH":
			if v != "" {
				path = hook + ":" + v
			}
		case k == cookie || !isOwn(k):
			out = append(out, e)
		}
	}
	return append(out, "PYTHONPATH="+path, socket)
}

// SafePath reports whether the script's folder stays off sys.path.
func (s *Spec) SafePath() bool {
	return s.Command.Safe || slices.ContainsFunc(s.Env, func(e string) bool {
		v, ok := strings.CutPrefix(e, "PYTHONSAFEPATH=")
		return ok && v != ""
	})
}

// Differs says why a forkserver of s, whose modules read the variables reads while they were
// imported, cannot stand in for a start of o; "" when it can.
func (s *Spec) Differs(o *Spec, reads []string) string {
	switch {
	case s.Tenant != o.Tenant || s.UID != o.UID:
		return "it is another user's"
	case s.Program != o.Program:
		return "it is another interpreter"
	case !slices.Equal(s.Command.Head(), o.Command.Head()):
		return "it is for another command"
	case s.Dir != o.Dir:
		return "it is for another working folder"
	}
	a, b := asMap(s.Env), asMap(o.Env)
	for _, names := range []map[string]string{a, b} {
		for k := range names {
			va, in := a[k]
			vb, also := b[k]
			if (in != also || va != vb) && !isOwn(k) && (isNative(k) || slices.Contains(reads, k)) {
				return "the variable " + k + " differs, which is read at import"
			}
		}
	}
	return ""
}

func isNative(k string) bool {
	return slices.ContainsFunc(native, func(p string) bool { return strings.HasPrefix(k, p) })
}

func asMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok {
			m[k] = v
		}
	}
	return m
}
