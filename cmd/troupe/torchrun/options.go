package torchrun

import "strings"

// Kind is how an option's value is read.
type Kind string

// Kinds of options. A List is comma-separated, and two commas stand for one.
const (
	Flag   Kind = "flag"
	Text   Kind = "text"
	Whole  Kind = "whole number"
	Number Kind = "number"
	List   Kind = "list"
)

// How an option is taken.
type How string

// An option does what it does under torchrun, turns into something of Troupe's, or has
// no meaning here.
const (
	Honoured  How = "honoured"
	Mapped    How = "mapped"
	NoMeaning How = "no meaning"
)

// Taken says what becomes of an option, and why.
type Taken struct {
	How  How
	Text string
}

// Option is one of torchrun's options.
type Option struct {
	Names   []string // every spelling, dashes first
	Kind    Kind
	Default string
	Choices []string
	NoEnv   bool // PET_<DEST> is not its default
	Help    string
	Launch  Taken // under `troupe launch` and `python -m troupe.launch`
	Run     Taken // under `troupe run`
}

// Name is the spelling with dashes.
func (o *Option) Name() string {
	for _, n := range o.Names {
		if strings.HasPrefix(n, "--") {
			return n
		}
	}
	return o.Names[0]
}

// Dest is the name of its value: the longest spelling, as argparse has it.
func (o *Option) Dest() string {
	long := ""
	for _, n := range o.Names {
		if len(n) > len(long) {
			long = n
		}
	}
	return strings.ReplaceAll(strings.TrimLeft(long, "-"), "-", "_")
}

// Env is the variable that holds its default, or nothing.
func (o *Option) Env() string {
	if o.NoEnv {
		return ""
	}
	return "PET_" + strings.ToUpper(o.Dest())
}

func names(short, dashed string) []string {
	out := []string{"--" + dashed}
	if under := strings.ReplaceAll(dashed, "-", "_"); under != dashed {
		out = append(out, "--"+under)
	}
	if short != "" {
		out = append([]string{short}, out...)
	}
	return out
}

func honoured(text string) Taken  { return Taken{Honoured, text} }
func mapped(text string) Taken    { return Taken{Mapped, text} }
func noMeaning(text string) Taken { return Taken{NoMeaning, text} }

const oneHost = "on one host there is nobody to meet"

// DefaultSignals are the signals that torchrun handles.
const DefaultSignals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

var runMeets = noMeaning("the cluster's head brings nodes together")

// Options are all of torchrun's, in its order. A test compares them with its parser.
var Options = []Option{
	{
		Names: names("", "nnodes"), Kind: Text, Default: "1:1", Help: "number of hosts, or MIN:MAX",
		Launch: honoured("hosts of the run; each starts the command, as under torchrun"),
		Run:    mapped("N above 1: so many nodes with --nproc-per-node ranks on each, exactly; MIN:MAX: a job that runs with any number of nodes between them"),
	},
	{
		Names: names("", "nproc-per-node"), Kind: Text, Default: "1", Help: "ranks on each host: a number, auto, cpu, gpu, xpu",
		Launch: honoured("ranks of this host; the words ask torch what is there"),
		Run:    mapped("--ranks, all on one node; gpu, auto and cpu are what every node of the cluster has"),
	},
	{
		Names: names("", "rdzv-backend"), Kind: Text, Default: "static", Help: "static or c10d",
		Launch: mapped("both meet at the endpoint's host, where Troupe's head runs; etcd is not needed"), Run: runMeets,
	},
	{
		Names: names("", "rdzv-endpoint"), Kind: Text, Help: "HOST[:PORT] where hosts meet",
		Launch: mapped("with several hosts, the host that runs the head of the run beside its ranks, and the port of its API (29400; static: 29500); " + oneHost), Run: runMeets,
	},
	{
		Names: names("", "rdzv-id"), Kind: Text, Default: "none", Help: "tells runs of one script apart",
		Launch: honoured("TORCHELASTIC_RUN_ID, the prefix of the log folder, and part of the run's name, which owns the checkpoints"),
		Run:    honoured("TORCHELASTIC_RUN_ID and the prefix of the log folder; --run names the owner of checkpoints"),
	},
	{
		Names: names("", "rdzv-conf"), Kind: Text, Help: "settings of the meeting, KEY=VALUE,…",
		Launch: mapped("join_timeout, last_call_timeout and is_host as under torchrun; token_file: the join key; store: where all hosts see the checkpoints; others have no meaning; " + oneHost), Run: runMeets,
	},
	{
		Names: names("", "standalone"), Kind: Flag, Help: "one host, nobody to meet",
		Launch: honoured("one host; --nnodes, --rdzv-backend, --rdzv-endpoint and --rdzv-id are set aside, as under torchrun"),
		Run:    noMeaning("a job meets nobody"),
	},
	{
		Names: names("", "max-restarts"), Kind: Whole, Default: "0", Help: "failed attempts of the group that are started again",
		Launch: honoured("every failed attempt counts, whatever its class, exactly; a host that joins or leaves within --nnodes does not"),
		Run:    mapped("restarts after failures of the script's own (default 3); lost nodes have a budget of their own"),
	},
	{
		Names: names("", "monitor-interval"), Kind: Number, Default: "0.1", Help: "seconds between looks at the ranks",
		Launch: noMeaning("nothing is polled: the end of a rank is known at once"), Run: noMeaning("nothing is polled: the end of a rank is known at once"),
	},
	{
		Names: names("", "start-method"), Kind: Text, Default: "spawn", Choices: []string{"spawn", "fork", "forkserver"}, Help: "how --run-path starts children",
		Launch: noMeaning("ranks are programs of their own, also with --run-path"), Run: noMeaning("ranks are programs of their own, also with --run-path"),
	},
	{
		Names: names("", "event-log-handler"), Kind: Text, Default: "null", Help: "name of a Python handler of events",
		Launch: noMeaning("events are the head's; the failure summary and error.json tell the same"), Run: noMeaning("events are the head's: troupe job events JOB"),
	},
	{
		Names: names("", "role"), Kind: Text, Default: "default", Help: "name in front of ranks' output, and ROLE_NAME",
		Launch: honoured("ROLE_NAME, and the prefix of console lines"), Run: honoured("ROLE_NAME, and the prefix of teed lines"),
	},
	{
		Names: names("-m", "module"), Kind: Flag, Help: "the script is a module, as in python -m",
		Launch: honoured("PYTHON -u -m MODULE"), Run: honoured("PYTHON -u -m MODULE; PYTHON is PYTHON_EXEC, else python3 or python of your PATH"),
	},
	{
		Names: names("", "no-python"), Kind: Flag, Help: "the script is a program of its own",
		Launch: honoured("the program is started as it is"), Run: honoured("the program is started as it is"),
	},
	{
		Names: names("", "run-path"), Kind: Flag, Help: "run the script by runpy",
		Launch: honoured("PYTHON -u -c with runpy.run_path, in a process of its own; beats --no-python"), Run: honoured("PYTHON -u -c with runpy.run_path; beats --no-python"),
	},
	{
		Names: names("", "log-dir"), Kind: Text, Help: "folder for ranks' output and error files",
		Launch: honoured("LOG_DIR/RUN_ID_RANDOM/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}; no attempt's folder is ever removed"),
		Run:    honoured("the same layout, on the machine where troupe run runs; ranks of other nodes stand there by RANK"),
	},
	{
		Names: names("-r", "redirects"), Kind: Text, Default: "0", Help: "streams to files: 0 none, 1 out, 2 err, 3 both, or RANK:CODE,…",
		Launch: honoured("local ranks of any number of digits"), Run: honoured("local ranks of any number of digits"),
	},
	{
		Names: names("-t", "tee"), Kind: Text, Default: "0", Help: "streams to files and console; values as for --redirects",
		Launch: honoured("local ranks of any number of digits"), Run: honoured("local ranks of any number of digits"),
	},
	{
		Names: names("", "log-line-prefix-template"), Kind: Text, Help: "prefix of teed lines: ${role_name} ${local_rank} ${rank} ${hostname}",
		Launch: honoured("also from TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"), Run: honoured("also from TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
	},
	{
		Names: names("", "local-ranks-filter"), Kind: Text, Help: "show only these local ranks on the console",
		Launch: honoured("files get everything all the same"), Run: honoured("files get everything all the same"),
	},
	{
		Names: names("", "duplicate-stdout-filters"), Kind: List, Help: "teed lines with any of these words also go to filtered_stdout.log",
		Launch: honoured("attempt_N/filtered_stdout.log"), Run: honoured("attempt_N/filtered_stdout.log"),
	},
	{
		Names: names("", "duplicate-stderr-filters"), Kind: List, Help: "the same of stderr, to filtered_stderr.log",
		Launch: honoured("attempt_N/filtered_stderr.log"), Run: honoured("attempt_N/filtered_stderr.log"),
	},
	{
		Names: names("", "node-rank"), Kind: Whole, Default: "0", Help: "place of this host among the hosts",
		Launch: honoured("GROUP_RANK of this host, with either backend; it stays over restarts"), Run: noMeaning("the cluster orders the nodes"),
	},
	{
		Names: names("", "master-addr"), Kind: Text, Default: "127.0.0.1", Help: "host of rank 0, for the static backend",
		Launch: mapped("with the static backend and several hosts it is the endpoint; MASTER_ADDR of ranks is where rank 0 runs"), Run: noMeaning("MASTER_ADDR is where rank 0 runs"),
	},
	{
		Names: names("", "master-port"), Kind: Whole, Help: "port on that host (29500)",
		Launch: mapped("with the static backend and several hosts it is the endpoint's; MASTER_PORT of ranks is a port found free for each attempt, so that no two runs collide"),
		Run:    noMeaning("MASTER_PORT is a port found free for each attempt"),
	},
	{
		Names: names("", "local-addr"), Kind: Text, Help: "address of this host for the others",
		Launch: mapped("with several hosts, the address that this one is reached at"), Run: noMeaning("nodes know their addresses"),
	},
	{
		Names: names("", "logs-specs"), Kind: Text, NoEnv: true, Help: "Python plug-in that lays out log files",
		Launch: noMeaning("Python plug-ins of the launcher are not loaded; --log-dir has torchrun's own layout"), Run: noMeaning("Python plug-ins of the launcher are not loaded"),
	},
	{
		Names: names("", "numa-binding"), Kind: Text, Choices: []string{"node", "socket", "exclusive", "core-complex"}, NoEnv: true, Help: "bind ranks to the CPUs near their GPU",
		Launch: honoured("by sched_setaffinity, without numactl; the run does not start where no GPU is, or the machine does not say which CPUs are near it"),
		Run:    honoured("by sched_setaffinity, without numactl; an attempt does not start where no GPU is, or the machine does not say which CPUs are near it"),
	},
	{
		Names: names("", "signals-to-handle"), Kind: Text, Default: DefaultSignals, Help: "signals that end the run in order",
		Launch: honoured("the others keep their default effect on the launcher; SIGUSR1 and SIGUSR2 are always passed on to the ranks, and end nothing"),
		Run:    honoured("the others keep their default effect on the command; SIGUSR1 and SIGUSR2 are always passed on to the ranks, and end nothing"),
	},
	{
		Names: names("", "shutdown-timeout"), Kind: Whole, Help: "seconds between SIGTERM and SIGKILL (30)",
		Launch: honoured("also from TORCH_ELASTIC_SHUTDOWN_TIMEOUT; ranks find it in TROUPE_SHUTDOWN_TIMEOUT"), Run: honoured("a number of seconds, or a time as 5m"),
	},
	{
		Names: names("", "virtual-local-rank"), Kind: Flag, Help: "LOCAL_RANK=0 and one GPU for every rank",
		Launch: honoured("LOCAL_RANK is 0 and CUDA_VISIBLE_DEVICES holds the rank's own device"), Run: honoured("LOCAL_RANK is 0 and CUDA_VISIBLE_DEVICES holds the rank's own device"),
	},
	{
		Names: names("", "print-completion"), Kind: Text, Choices: []string{"bash", "zsh", "tcsh"}, NoEnv: true, Help: "print completion for a shell, and end",
		Launch: honoured("for torchrun's options, without shtab"), Run: honoured("for torchrun's options, without shtab"),
	},
}

var byName = func() map[string]*Option {
	m := map[string]*Option{}
	for i := range Options {
		for _, n := range Options[i].Names {
			m[n] = &Options[i]
		}
	}
	return m
}()
