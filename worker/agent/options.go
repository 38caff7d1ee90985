package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/gpu"
	"github.com/troupe-runtime/troupe/worker/numa"
	"github.com/troupe-runtime/troupe/worker/process"
)

// Errors that a caller acts on.
var (
	// ErrLocked: another agent runs on the state folder; exit code 73.
	ErrLocked = errors.New("another agent uses this state folder")
	// ErrNode: the state folder belongs to another node.
	ErrNode = errors.New("the state folder belongs to another node")
	// ErrSocketRoot: SocketRoot is too long for Unix sockets below it.
	ErrSocketRoot = errors.New("the folder for sockets has a name that is too long")
)

// Options make an Agent. NodeID, StateDir, SocketRoot and Bus are required, and
// either ShimPath or Launcher.
type Options struct {
	// NodeID is the node's identity; see NodeID for one that a state folder keeps.
	NodeID  string
	Name    string // for people; default: the host name
	Address string // where ranks of other nodes reach this one; default 127.0.0.1
	// StateDir keeps the allocations' folders and the ranks' output.
	StateDir string
	// SocketRoot is a folder with a short name (at most MaxSocketRoot bytes) on a file
	// system that holds sockets, used by no other agent.
	SocketRoot string
	Labels     map[string]string
	CPU        unit.MilliCPU // default: all of the machine's
	Memory     unit.Bytes    // default: all of the machine's
	GPU        gpu.Source    // default: none
	// Topology tells which CPUs are near a GPU; default: the machine's.
	Topology func() (numa.Machine, error)
	Bus      bus.Conn
	Clock    clock.Clock  // default: the machine's
	Logger   *slog.Logger // default: discard
	Version  string
	// ShimPath is the program that is a shim and its first arguments: the path of
	// troupe-shim alone, or that of the main binary and "shim".
	ShimPath []string
	// ShimAccess is how this node's shims reach the bus when the agent is gone; nil: they
	// cannot. It is kept in a file of mode 0600 in StateDir.
	ShimAccess *link.Access
	// Binary is the main binary, which a shim starts as its saver.
	Binary string
	// ReleasePatience is how long a driver may take to give back the memory of processes
	// that are gone before the device counts as dirty; default 10 s.
	ReleasePatience time.Duration
	// Heads are the addresses of the heads' bus, host:port; none when the head is in this
	// process.
	Heads []string
	// OwnProcess: nothing but this agent runs in the process.
	OwnProcess bool
	// Warm is the folder of the forkserver's Python side; "": all ranks are started by exec.
	Warm string
	// Launcher starts and finds shims; default: real ones with ShimPath.
	Launcher Launcher
	// Ports holds master ports; default: some on Address.
	Ports Ports
	// Disk is where checkpoint stores are; default: the machine's.
	Disk checkpoint.FS
	// BootID names this boot of the machine; default: the kernel's.
	BootID string
	// Random fills b; default: crypto/rand.
	Random func(b []byte) error
	// OnRestart is called when somebody asks, over the agent's socket, for a restart: it
	// ends this agent and starts another one on the same folder. It must not block. nil:
	// such requests are refused.
	OnRestart func()
	// NoticeFile, if any, is an absolute path: once something lies there this node is about
	// to be taken away. What it holds may name the time: see ParseNotice.
	NoticeFile string
	// NoticeGrace is the time that a notice leaves which names none; default 2 min, at most
	// wire.MaxNoticeLeft.
	NoticeGrace time.Duration
	// NoSocket leaves out <StateDir>/agent.sock. A simulated cluster needs that, since
	// waiting on a real socket is not waiting for virtual time.
	NoSocket bool
}

// MaxSocketRoot is the longest SocketRoot: a Unix address holds 107 bytes, and
// "/<10 hex digits>/agent.sock" goes below it.
const MaxSocketRoot = 107 - 1 - 10 - len("/agent.sock")

func (o *Options) complete() error {
	switch {
	case !validNode(o.NodeID):
		return fmt.Errorf("node id %q: want 1 to %d letters, digits, '-' and '_'", clip(o.NodeID), maxNodeID)
	case !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.SocketRoot):
		return fmt.Errorf("state folder %q and socket folder %q must be absolute", o.StateDir, o.SocketRoot)
	case len(o.SocketRoot) > MaxSocketRoot:
		return fmt.Errorf("%w: %s has %d bytes, at most %d fit; choose a shorter one", ErrSocketRoot, o.SocketRoot, len(o.SocketRoot), MaxSocketRoot)
	case o.Bus == nil:
		return errors.New("an agent needs a bus")
	case o.Launcher == nil && len(o.ShimPath) == 0:
		return errors.New("an agent needs a program that is its shim")
	}
	if o.Clock == nil {
		o.Clock = clock.Real()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = func(b []byte) error { _, err := rand.Read(b); return err }
	}
	if o.Disk == nil {
		o.Disk = checkpoint.OS()
	}
	if o.Topology == nil {
		o.Topology = numa.Here
	}
	if o.GPU == nil {
		o.GPU = gpu.None()
	}
	if o.NoticeFile != "" && !filepath.IsAbs(o.NoticeFile) {
		return fmt.Errorf("notice file %q must be absolute", o.NoticeFile)
	}
	if o.NoticeGrace == 0 {
		o.NoticeGrace = DefaultNoticeGrace
	}
	if o.NoticeGrace < 0 || o.NoticeGrace > wire.MaxNoticeLeft {
		return fmt.Errorf("notice grace %s: want more than 0 and at most %s", o.NoticeGrace, wire.MaxNoticeLeft)
	}
	if o.ReleasePatience <= 0 {
		o.ReleasePatience = 10 * time.Second
	}
	if o.Launcher == nil {
		o.Launcher = NewLauncher(o.ShimPath)
	}
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.Name == "" {
		if host, err := os.Hostname(); err == nil {
			o.Name = host
		} else {
			o.Name = o.NodeID
		}
	}
	if o.CPU <= 0 {
		o.CPU = unit.MilliCPU(runtime.NumCPU()) * 1000
	}
	var err error
	if o.Memory <= 0 {
		if o.Memory, err = totalMemory(); err != nil {
			return err
		}
	}
	if o.BootID == "" {
		if o.BootID, err = process.BootID(); err != nil {
			return err
		}
	}
	return nil
}

// totalMemory is the machine's memory.
func totalMemory() (unit.Bytes, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the size of memory: %w", err)
	}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0] != "MemTotal:" {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 54); err == nil {
			return unit.Bytes(n) * unit.KiB, nil
		}
	}
	return 0, errors.New("read the size of memory: no MemTotal in /proc/meminfo")
}

const (
	maxID       = 128
	maxNodeID   = 63
	nodeIDFile  = "node-id"
	startedFile = "started"
)

// validNode accepts an id that is one token of a subject.
func validNode(s string) bool { return plain(s) && len(s) <= maxNodeID && !strings.Contains(s, ".") }

// plain accepts an id that is one path element.
func plain(s string) bool {
	if s == "" || len(s) > maxID || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// NodeID reads the identity that a state folder keeps, or draws one and writes it.
func NodeID(stateDir string) (string, error) {
	path := filepath.Join(stateDir, nodeIDFile)
	if id, err := readNodeID(path); !errors.Is(err, os.ErrNotExist) {
		return id, err
	}
	var b [5]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("draw a node id: %w", err)
	}
	id := "n" + hex.EncodeToString(b[:])
	return id, keepNodeID(stateDir, id)
}

func readNodeID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the node's id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if !validNode(id) {
		return "", fmt.Errorf("%s holds no node id; restore it, or remove it to join as a new node", path)
	}
	return id, nil
}

// keepNodeID writes the id into the state folder, or compares it with the one there.
func keepNodeID(stateDir, id string) error {
	path := filepath.Join(stateDir, nodeIDFile)
	switch there, err := readNodeID(path); {
	case err == nil && there != id:
		return fmt.Errorf("%w: %s is of %s, not of %s", ErrNode, stateDir, there, id)
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	return writeDurable(path, []byte(id+"\n"))
}

// nextStart numbers this start of the agent, above all earlier ones of the state
// folder even if the clock was set back.
func nextStart(stateDir string, now int64) (int64, error) {
	path := filepath.Join(stateDir, startedFile)
	if b, err := os.ReadFile(path); err == nil {
		// One that cannot be read leaves the clock, which is right but for a set-back.
		if last, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			now = max(now, last+1)
		}
	}
	return now, writeDurable(path, []byte(strconv.FormatInt(now, 10)+"\n"))
}

// writeDurable replaces a file of what must survive a power cut: who the node is. Without
// it the node would come back as a stranger.
func writeDurable(path string, data []byte) error {
	if err := disk.WriteFileAtomic(disk.OS(), path, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// writeWhole replaces a file so that a reader sees the old or the new one. It does not
// sync: what is written so, configurations, journals and ends of allocations, tells of
// processes of this boot. After a power cut none of them lives, the node has another boot
// id, and the head knows by it that its allocations have ended.
func writeWhole(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
