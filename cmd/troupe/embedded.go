package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/cmd/troupe/embed"
	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/agent"
	"github.com/troupe-runtime/troupe/worker/gpu"
)

// embeddedOrphan is how long ranks of an embedded cluster outlive it.
const embeddedOrphan = 5 * time.Second

// upInfo is <state>/up.json: how to reach and end a cluster that `up` started.
type upInfo struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"`
	API       string `json:"api"`
	Bus       string `json:"bus"`
}

const upFile = "up.json"

// embedded is head and worker in one process.
type embedded struct {
	state  string
	head   *head.Head
	agent  *agent.Agent
	conn   bus.Conn
	cancel context.CancelFunc
	wg     sync.WaitGroup
	fail   chan error
	node   string // id
}

// embeddedOptions of `up` and `launch`.
type embeddedOptions struct {
	state   string
	api     string // host:port
	bus     string
	gpus    string
	name    string
	logger  *slog.Logger
	orphan  time.Duration
	nodeCPU unit.MilliCPU
	notice  noticeFlags
	// Of a launch over several hosts.
	address string // where other nodes reach this one; default 127.0.0.1
	labels  map[string]string
	head    func(*head.Options)
	agent   func(*agent.Agent) error // before it runs
}

func versionInfo() api.Version {
	v := api.Version{Version: version, Go: runtime.Version(), Level: wire.Level, UI: "missing", Shim: "self", NVML: hasNVML}
	if _, ok := embed.Shim(); ok {
		v.Shim = "embedded"
	}
	return v
}

// startEmbedded creates the cluster on an empty folder and starts head and worker.
func startEmbedded(ctx context.Context, o embeddedOptions) (_ *embedded, err error) {
	if err := os.MkdirAll(o.state, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	e := &embedded{state: o.state, fail: make(chan error, 2)}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	headDir := filepath.Join(o.state, "head")
	if err := head.Init(headDir); err != nil && !errors.Is(err, consensus.ErrAlreadyInitialized) {
		return nil, err
	}
	timing := control.Timing{Orphan: o.orphan}
	ho := head.Options{
		Dir: headDir, APIAddress: o.api, BusAddress: o.bus, Timing: timing, Logger: o.logger, Version: versionInfo(), Name: o.name,
	}
	if o.head != nil {
		o.head(&ho)
	}
	e.head, err = head.Start(ho)
	if err != nil {
		return nil, err
	}
	if err := e.head.WaitReady(ctx); err != nil {
		return nil, err
	}
	nodeDir := filepath.Join(o.state, "node")
	id, err := agent.NodeID(nodeDir)
	if err != nil {
		return nil, err
	}
	token, err := head.ReadToken(headDir, head.NodeTokenFile)
	if err != nil {
		return nil, err
	}
	if e.conn, err = e.head.InProcess(id, token); err != nil {
		return nil, fmt.Errorf("connect the node to the bus: %w", err)
	}
	ao, err := agentOptions(nodeDir, id, o.gpus, o.logger)
	if err != nil {
		return nil, err
	}
	ao.Bus, ao.Address, ao.Name, ao.CPU = e.conn, "127.0.0.1", o.name, o.nodeCPU
	if _, secure := e.head.Pin(); !secure {
		ao.ShimAccess = shimAccess(e.head.BusURL(), id, token)
	}
	if o.address != "" {
		ao.Address = o.address
	}
	ao.Labels, ao.NoticeFile, ao.NoticeGrace = o.labels, o.notice.file, o.notice.grace
	if e.agent, err = agent.New(ao); err != nil {
		return nil, err
	}
	if o.agent != nil {
		if err := o.agent(e.agent); err != nil {
			return nil, err
		}
	}
	e.node = id
	actx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.wg.Go(func() {
		if err := e.agent.Run(actx); err != nil && actx.Err() == nil {
			e.failed(err)
		}
	})
	e.wg.Go(func() {
		select {
		case err := <-e.head.Failed():
			e.failed(err)
		case <-actx.Done():
		}
	})
	return e, e.waitNode(ctx, id)
}

// waitNode returns when the node has registered: what is submitted now runs now.
func (e *embedded) waitNode(ctx context.Context, id string) error {
	for {
		changed := e.head.Control().Changed()
		nodes, _, err := e.head.Control().Nodes(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if n.ID == id && n.State == api.NodeReady && !n.LastHeartbeat.IsZero() {
				return nil
			}
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case err := <-e.fail:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the node did not register: %w", ctx.Err())
		}
	}
}

func (e *embedded) failed(err error) {
	select {
	case e.fail <- err:
	default:
	}
}

// endAll ends every process of every job on the node.
func (e *embedded) endAll(ctx context.Context) error { return e.agent.EndAll(ctx) }

// close ends worker and head; ranks go on until the orphan time.
func (e *embedded) close() {
	if e.cancel != nil {
		e.cancel()
	}
	e.wg.Wait()
	if e.agent != nil {
		e.agent.Close()
	}
	if e.conn != nil {
		e.conn.Close()
	}
	if e.head != nil {
		_ = e.head.Close()
	}
	dropSockets(filepath.Join(e.state, "node"))
}

func (e *embedded) info() (upInfo, error) {
	start, err := startTime(os.Getpid())
	return upInfo{PID: os.Getpid(), StartTime: start, API: e.head.APIURL(), Bus: e.head.BusURL()}, err
}

// agentOptions are what `up` and `worker start` have in common.
func agentOptions(dir, id, gpus string, log *slog.Logger) (agent.Options, error) {
	exe, err := os.Executable()
	if err != nil {
		return agent.Options{}, fmt.Errorf("find this program: %w", err)
	}
	o := agent.Options{NodeID: id, StateDir: dir, Logger: log, Version: version, Binary: exe, ShimPath: []string{exe, "shim"}}
	if b, ok := embed.Shim(); ok {
		path, err := extractShim(dir, b)
		if err != nil {
			return o, err
		}
		o.ShimPath = []string{path}
	}
	if o.Warm, err = extractWarm(dir); err != nil {
		return o, err
	}
	if o.GPU, err = gpu.Open(gpus, id, log); err != nil {
		return o, usage("--gpus: %v", err)
	}
	o.SocketRoot = socketRoot(dir)
	return o, nil
}

// shimAccess is how the shims of a node reach the bus when its agent is gone: with the
// node's own token, and permission to say that they live.
func shimAccess(busURL, id, token string) *link.Access {
	return &link.Access{URLs: []string{busURL}, User: "shim/" + id, Password: token, InboxPrefix: wire.InboxPrefix("shim-" + id)}
}

// socketRoot is a short folder for Unix sockets: below the state folder if its name
// is short enough, else one in the runtime or temporary folder named after it.
func socketRoot(dir string) string {
	if p := filepath.Join(dir, "s"); len(p) <= agent.MaxSocketRoot {
		return p
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(dir))
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" || len(base) > 40 {
		base = os.TempDir()
	}
	return filepath.Join(base, fmt.Sprintf("troupe-%d-%x", os.Getuid(), sum.Sum64()))
}

// awaitShims returns when no shim of a node is left, or after five seconds; job limits
// it to those of one job. An allocation is gone, and said to be, a moment before its
// shim is; whoever asked for the end of everything wants that moment waited for too.
func awaitShims(ctx context.Context, nodeDir, job string) {
	mark := "\x00" + filepath.Join(nodeDir, "alloc") + "/"
	if job != "" {
		mark += job + "."
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for ctx.Err() == nil && started(mark) {
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// dropSockets removes the folder of a node's sockets if it lies outside its state and
// nothing uses it any more.
func dropSockets(nodeDir string) {
	if root := socketRoot(nodeDir); !strings.HasPrefix(root, nodeDir) {
		_ = os.Remove(root) // fails while a shim has its own in there, as it should
	}
}

// started looks for a process that has a text in its command line.
func started(mark string) bool {
	lists, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lists {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(mark)) {
			return true
		}
	}
	return false
}

// startTime is field 22 of /proc/PID/stat, which tells a process from a later one of
// the same number.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	// The name in parentheses may hold anything.
	i := len(b) - 1
	for i >= 0 && b[i] != ')' {
		i--
	}
	field, n := 2, uint64(0)
	for _, w := range splitFields(string(b[i+1:])) {
		field++
		if field == 22 {
			if n, err = strconv.ParseUint(w, 10, 64); err != nil {
				return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("read the start time of process %d: no field 22", pid)
}

func splitFields(s string) []string {
	var out []string
	start := -1
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != ' ' && s[i] != '\n' {
			if start < 0 {
				start = i
			}
			continue
		}
		if start >= 0 {
			out = append(out, s[start:i])
			start = -1
		}
	}
	return out
}

// readUp reads up.json; ok says that the process it names lives.
func readUp(state string) (upInfo, bool, error) {
	var u upInfo
	b, err := os.ReadFile(filepath.Join(state, upFile))
	if errors.Is(err, fs.ErrNotExist) {
		return u, false, nil
	}
	if err != nil {
		return u, false, fmt.Errorf("read %s: %w", upFile, err)
	}
	if err := json.Unmarshal(b, &u); err != nil {
		return u, false, nil //nolint:nilerr // a torn file names nobody
	}
	start, err := startTime(u.PID)
	return u, err == nil && start == u.StartTime, nil
}

func writeUp(state string, u upInfo) error {
	b, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode %s: %w", upFile, err)
	}
	path := filepath.Join(state, upFile)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// busOf guesses the bus address of a head from its API address.
func busOf(u *url.URL) string {
	_, port, _ := net.SplitHostPort(head.DefaultBusAddress)
	return "nats://" + net.JoinHostPort(u.Hostname(), port)
}
