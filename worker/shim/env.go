package shim

import (
	"maps"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// passed are the only variables of the agent's own environment that reach a rank.
var passed = []string{"PATH", "HOME", "LANG", "TZ"}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv is that part of this process's environment.
func baseEnv() map[string]string {
	env := map[string]string{"PATH": defaultPath}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	return env
}

// rankEnv is the whole environment of one rank: base, then the launch environment,
// then what the job asked for, then the names that torchrun and Troupe own. The
// mark comes first, where a sweep finds it soonest.
func rankEnv(cfg *Config, a *wire.AttemptSpec, r wire.RankSpec, base map[string]string, launch []string, socket, errorFile string) []string {
	env := map[string]string{}
	maps.Copy(env, base)
	for _, e := range launch {
		if k, v, ok := strings.Cut(e, "="); ok && validName(k) {
			env[k] = v
		}
	}
	for k, v := range a.Env {
		if validName(k) {
			env[k] = v
		}
	}
	// As torchrun: several ranks on one machine must not each take all its cores.
	if _, set := env["OMP_NUM_THREADS"]; !set && len(a.Ranks) > 1 {
		env["OMP_NUM_THREADS"] = "1"
	}
	if _, set := env["PYTHONUNBUFFERED"]; !set {
		env["PYTHONUNBUFFERED"] = "1" // lines arrive when they are printed, and before a kill
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	env["RANK"] = n(r.Rank)
	env["LOCAL_RANK"] = n(r.LocalRank)
	env["WORLD_SIZE"] = n(a.World)
	env["LOCAL_WORLD_SIZE"] = n(int64(len(a.Ranks)))
	env["GROUP_RANK"] = n(a.GroupRank)
	env["GROUP_WORLD_SIZE"] = n(a.GroupWorld)
	env["ROLE_RANK"] = n(r.Rank)
	env["ROLE_WORLD_SIZE"] = n(a.World)
	env["ROLE_NAME"] = orElse(a.Role, "default")
	env["MASTER_ADDR"] = a.MasterAddr
	env["MASTER_PORT"] = n(a.MasterPort)
	env["TORCHELASTIC_RESTART_COUNT"] = n(a.Number)
	env["TORCHELASTIC_MAX_RESTARTS"] = n(a.MaxRestarts)
	env["TORCHELASTIC_RUN_ID"] = orElse(a.RunID, cfg.Run)
	// No agent hosts a TCPStore here, so rank 0 makes the server itself.
	env["TORCHELASTIC_USE_AGENT_STORE"] = "False"
	env["TORCHELASTIC_ERROR_FILE"] = errorFile
	// Its old name, NCCL_ASYNC_ERROR_HANDLING, is left out: torch warns of it.
	if _, set := env["TORCH_NCCL_ASYNC_ERROR_HANDLING"]; !set {
		env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
	}
	if len(cfg.Devices) > 0 {
		env["CUDA_VISIBLE_DEVICES"] = strings.Join(cfg.Devices, ",")
	}
	if a.VirtualLocalRank {
		virtualLocalRank(env, r.LocalRank)
	}
	env["TROUPE_JOB"] = cfg.Job
	env["TROUPE_RUN"] = cfg.Run
	env["TROUPE_ATTEMPT"] = n(a.Number)
	env["TROUPE_GENERATION"] = strconv.FormatUint(a.Generation, 10)
	env["TROUPE_SOCKET"] = socket
	if a.ShutdownTimeout > 0 {
		env["TROUPE_SHUTDOWN_TIMEOUT"] = strconv.FormatFloat(a.ShutdownTimeout.D().Seconds(), 'f', -1, 64)
	}
	delete(env, process.CookieEnv)

	list := make([]string, 1, len(env)+1)
	list[0] = process.CookieEnv + "=" + cfg.Cookie
	for k, v := range env {
		if !strings.ContainsRune(v, 0) {
			list = append(list, k+"="+v)
		}
	}
	sort.Strings(list[1:])
	return list
}

// virtualLocalRank is torchrun's rule of that name: the rank sees one device, the one
// that its local rank stands for among those it would see, and counts it as 0. HIP's
// list comes first where there is one. A local rank behind the list's end sees none.
func virtualLocalRank(env map[string]string, local int64) {
	env["LOCAL_RANK"] = "0"
	list, hip := env["HIP_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"] != ""
	known := hip
	if !hip {
		list, known = env["CUDA_VISIBLE_DEVICES"], hasKey(env, "CUDA_VISIBLE_DEVICES")
	}
	device := strconv.FormatInt(local, 10)
	if known {
		device = ""
		if all := strings.Split(list, ","); local < int64(len(all)) {
			device = strings.TrimSpace(all[local])
		}
	}
	env["CUDA_VISIBLE_DEVICES"] = device
	if hip {
		env["HIP_VISIBLE_DEVICES"] = device
	}
}

func hasKey(m map[string]string, k string) bool { _, ok := m[k]; return ok }

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func validName(k string) bool { return k != "" && !strings.ContainsAny(k, "=\x00") }

// rankArgs replaces the macro ${local_rank} as torchrun does.
func rankArgs(command []string, local int64) []string {
	out := make([]string, len(command))
	for i, c := range command {
		out[i] = strings.ReplaceAll(c, "${local_rank}", strconv.FormatInt(local, 10))
	}
	return out
}
