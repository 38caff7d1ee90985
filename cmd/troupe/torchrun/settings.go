package torchrun

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Meeting is what --nnodes, --rdzv-*, --node-rank, --master-* and --local-addr say:
// which hosts make up the run and where they find each other.
type Meeting struct {
	MinNodes, MaxNodes int64
	Standalone         bool
	Backend            string // static or c10d
	Endpoint           string // HOST[:PORT], "" for none
	ID                 string // "none" unless given
	Conf               map[string]string
	NodeRank           int64
	NodeRankGiven      bool
	MasterAddr         string
	MasterPort         int64 // 0: not given
	LocalAddr          string
}

// Settings are the options' values, checked as far as they can be without looking at
// the machine.
type Settings struct {
	Meeting      Meeting
	PerNode      string // --nproc-per-node: a number ≥ 1, or a word
	MaxRestarts  int64
	Role         string
	RunID        string // "" unless given
	LogDir       string
	Redirects    string
	Tee          string
	Prefix       string // template of console lines, "" for torchrun's own
	RanksFilter  []int64
	OutFilters   []string
	ErrFilters   []string
	Signals      []string // SIGTERM, …
	Shutdown     time.Duration
	VirtualLocal bool
	NumaBinding  string // "" unless given
	Module       bool
	NoPython     bool
	RunPath      bool
}

var (
	stdCode = regexp.MustCompile(`^[0-3]$`)
	// torchrun maps single digits only; more do no harm.
	stdMap = regexp.MustCompile(`^\d+:[0-3](,\d+:[0-3])*$`)
)

// Settings checks the values.
func (l *Line) Settings(lookup func(string) (string, bool)) (*Settings, error) {
	s := &Settings{
		PerNode: l.text("nproc_per_node"), MaxRestarts: l.whole("max_restarts"), Role: l.text("role"),
		LogDir: l.text("log_dir"), Redirects: l.text("redirects"), Tee: l.text("tee"), Prefix: l.text("log_line_prefix_template"),
		OutFilters: l.filters("duplicate_stdout_filters"), ErrFilters: l.filters("duplicate_stderr_filters"),
		VirtualLocal: l.flag("virtual_local_rank"), NumaBinding: l.text("numa_binding"), Module: l.flag("module"), NoPython: l.flag("no_python"), RunPath: l.flag("run_path"),
	}
	if err := l.meeting(&s.Meeting); err != nil {
		return nil, err
	}
	if !s.Meeting.Standalone && l.Given("rdzv_id") {
		s.RunID = s.Meeting.ID
	}
	if n, err := whole(s.PerNode); err == nil {
		if n < 1 {
			return nil, badUsage("--nproc-per-node=%s: at least one rank", s.PerNode)
		}
		s.PerNode = strconv.FormatInt(n, 10)
	}
	if s.MaxRestarts < 0 {
		return nil, badUsage("--max-restarts=%d: fewer than none", s.MaxRestarts)
	}
	for _, d := range []struct{ name, v string }{{"redirects", s.Redirects}, {"tee", s.Tee}} {
		if !stdCode.MatchString(d.v) && !stdMap.MatchString(d.v) {
			return nil, badUsage("--%s=%q is neither 0, 1, 2, 3 nor RANK:CODE,…", d.name, d.v)
		}
	}
	if s.Prefix == "" {
		s.Prefix, _ = lookup("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
	}
	if f := l.text("local_ranks_filter"); f != "" {
		for w := range strings.SplitSeq(f, ",") {
			n, err := whole(w)
			if err != nil || n < 0 {
				return nil, badUsage("--local-ranks-filter=%q is not a list of local ranks such as 0,1,2", f)
			}
			s.RanksFilter = append(s.RanksFilter, n)
		}
	}
	for w := range strings.SplitSeq(l.text("signals_to_handle"), ",") {
		if w = strings.TrimSpace(w); w != "" {
			s.Signals = append(s.Signals, w)
		}
	}
	if s.NoPython && s.Module && !s.RunPath {
		return nil, badUsage("--no-python and --module exclude each other")
	}
	return s, l.shutdown(s, lookup)
}

// filters are torchrun's lists of words; a single empty word would match every line.
func (l *Line) filters(dest string) []string {
	return slices.DeleteFunc(slices.Clone(l.lists[dest]), func(w string) bool { return w == "" })
}

const defaultShutdown = 30 * time.Second

// maxSeconds keeps a number of seconds within what a duration can hold.
const maxSeconds = 10 * 365 * 24 * 3600

func (l *Line) shutdown(s *Settings, lookup func(string) (string, bool)) error {
	s.Shutdown = defaultShutdown
	source, text := "--shutdown-timeout", l.text("shutdown_timeout")
	if text == "" {
		source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
		if text, _ = lookup(source); text == "" {
			return nil
		}
	}
	n, err := whole(text)
	if err != nil || n < 0 || n > maxSeconds {
		return badUsage("%s=%s: want seconds, 0 or more", source, text)
	}
	s.Shutdown = time.Duration(n) * time.Second
	return nil
}

func (l *Line) meeting(m *Meeting) error {
	*m = Meeting{
		Backend: l.text("rdzv_backend"), Endpoint: l.text("rdzv_endpoint"), ID: l.text("rdzv_id"), NodeRank: l.whole("node_rank"),
		NodeRankGiven: l.Given("node_rank"), MasterAddr: l.text("master_addr"), MasterPort: l.whole("master_port"), LocalAddr: l.text("local_addr"),
		Standalone: l.flag("standalone"), MinNodes: 1, MaxNodes: 1,
	}
	nodes := l.text("nnodes")
	lo, hi, ranged := strings.Cut(nodes, ":")
	if !ranged {
		hi = lo
	}
	least, err1 := whole(lo)
	most, err2 := whole(hi)
	switch {
	case err1 != nil || err2 != nil:
		return badUsage("--nnodes=%q is neither N nor MIN:MAX", nodes)
	case least < 1 || most < least:
		return badUsage("--nnodes=%s is not 0 < MIN <= MAX", nodes)
	case m.NodeRank < 0:
		return badUsage("--node-rank=%d: less than 0", m.NodeRank)
	case l.Given("master_port") && (m.MasterPort < 0 || m.MasterPort > 65535):
		return badUsage("--master-port=%d: no such port", m.MasterPort)
	}
	var err error
	if m.Conf, err = conf(l.text("rdzv_conf")); err != nil {
		return err
	}
	if m.Standalone {
		m.Backend, m.Endpoint, m.ID = "c10d", "localhost:0", "none"
		return nil
	}
	m.MinNodes, m.MaxNodes = least, most
	return nil
}

// conf reads KEY=VALUE,… as torchrun does.
func conf(text string) (map[string]string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		k, v, _ := strings.Cut(part, "=")
		if k = strings.TrimSpace(k); k == "" {
			return nil, badUsage("--rdzv-conf=%q is not KEY=VALUE,…", text)
		}
		if v = strings.TrimSpace(v); v == "" {
			return nil, badUsage("--rdzv-conf: %q has no value", k)
		}
		out[k] = v
	}
	return out, nil
}

// Codes reads the value of --redirects or --tee: bits by local rank, -1 for all. Bit 0
// is stdout, bit 1 stderr.
func Codes(text string) map[int64]int64 {
	out := map[int64]int64{}
	for part := range strings.SplitSeq(text, ",") {
		rank, code := int64(-1), part
		if l, r, ok := strings.Cut(part, ":"); ok {
			rank, _ = whole(l)
			code = r
		}
		out[rank], _ = whole(code)
	}
	return out
}
