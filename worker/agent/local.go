package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// localSocket is where processes of the same user on this machine reach the agent.
const localSocket = "agent.sock"

// Bounds of launch environments. They may hold secrets: they are kept in memory
// alone, and never appear in a log or an error.
const (
	maxLocal = 1 << 20 // one message
	// maxEnv is an environment as JSON, which is how it goes on to the shim: in one frame
	// with the attempt, of which it may take half.
	maxEnv      = shim.MaxAgentFrame / 2
	maxEnvs     = 64
	maxEnvVars  = 16384
	localWait   = 5 * time.Second
	maxLocalUse = 32
)

// localMessage is what the agent takes on its socket, as a frame of the shim's
// protocol: a 4-byte length and JSON.
type localMessage struct {
	Type string   `json:"type"` // env, state, restart
	Key  string   `json:"key"`
	Env  []string `json:"env"` // NAME=value
}

type localReply struct {
	Error string `json:"error,omitempty"`
	State *State `json:"state,omitempty"` // answers state and restart
}

// envs holds the newest launch environments.
type envs struct {
	byKey map[string][]string
	order []string
}

func (e *envs) put(key string, env []string) {
	if e.byKey == nil {
		e.byKey = map[string][]string{}
	}
	if _, there := e.byKey[key]; !there {
		e.order = append(e.order, key)
		if len(e.order) > maxEnvs {
			delete(e.byKey, e.order[0])
			e.order = e.order[1:]
		}
	}
	e.byKey[key] = env
}

func (e *envs) get(key string) ([]string, bool) {
	env, ok := e.byKey[key]
	return env, ok
}

// LocalEnv gives the agent the environment of a launch command, NAME=value each,
// under the key that the job's specification names as launchEnv. It stays in memory.
func (a *Agent) LocalEnv(key string, env []string) error {
	if err := checkEnv(key, env); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.env.put(key, append([]string(nil), env...))
	for _, x := range a.allocs {
		wake(x.wake)
	}
	return nil
}

func checkEnv(key string, env []string) error {
	if key == "" || len(key) > maxID || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("the key of an environment must have 1 to %d printable characters", maxID)
	}
	if len(env) > maxEnvVars {
		return fmt.Errorf("an environment has %d variables, at most %d are taken", len(env), maxEnvVars)
	}
	for _, e := range env {
		if i := strings.IndexByte(e, '='); i < 1 || strings.ContainsRune(e, 0) {
			return errors.New("an environment holds something that is not NAME=value")
		}
	}
	b, err := json.Marshal(env)
	if err != nil {
		return errors.New("an environment cannot be encoded")
	}
	if len(b) > maxEnv {
		return fmt.Errorf("the environment takes %d bytes, at most %d can be handed to ranks: remove the largest variables from it", len(b), maxEnv)
	}
	return nil
}

// SendLocalEnv does what LocalEnv does, from another process of the same user, to the
// agent that runs on stateDir.
func SendLocalEnv(ctx context.Context, stateDir, key string, env []string) error {
	if err := checkEnv(key, env); err != nil {
		return err
	}
	_, err := askLocal(ctx, stateDir, localMessage{Type: "env", Key: key, Env: env})
	return err
}

// askLocal says one thing to the agent that runs on stateDir. Its errors quote nothing of
// what was said.
func askLocal(ctx context.Context, stateDir string, m localMessage) (localReply, error) {
	var r localReply
	path, done, err := shortPath(stateDir)
	if err != nil {
		return r, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, localWait)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return r, fmt.Errorf("reach the agent of %s: %w", stateDir, err)
	}
	defer c.Close()
	if t, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(t)
	}
	if err := shim.WriteFrame(c, maxLocal, m); err != nil {
		return r, fmt.Errorf("talk to the agent of %s: %w", stateDir, err)
	}
	if err := shim.ReadFrame(c, maxLocal, &r); err != nil {
		return r, fmt.Errorf("talk to the agent of %s: %w", stateDir, err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// shortPath names the socket in a folder of any length: a Unix address holds 107
// bytes, and a name through an open descriptor is short.
func shortPath(dir string) (path string, done func(), err error) {
	path = filepath.Join(dir, localSocket)
	if len(path) <= 107 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open the state folder: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, localSocket), func() { unix.Close(fd) }, nil
}

// listenLocal makes the agent's socket. The lock on the state folder says that one
// which is there is of a dead agent.
func listenLocal(stateDir string) (*net.UnixListener, error) {
	real := filepath.Join(stateDir, localSocket)
	if err := os.Remove(real); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace the agent's socket: %w", err)
	}
	path, done, err := shortPath(stateDir)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", real, err)
	}
	l.SetUnlinkOnClose(false) // the next agent replaces it
	if err := os.Chmod(real, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect the agent's socket: %w", err)
	}
	return l, nil
}

func (a *Agent) serveLocal(ctx context.Context, l *net.UnixListener) {
	busy := make(chan struct{}, maxLocalUse)
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			_ = a.Clock.Sleep(ctx, minBackoff) // out of descriptors: later
			continue
		}
		select {
		case busy <- struct{}{}:
		default:
			c.Close()
			continue
		}
		a.spawn(func() {
			defer func() { <-busy }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			a.answerLocal(c)
		})
	}
}

func (a *Agent) answerLocal(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(localWait)) // the kernel's deadline, not the cluster's time
	var r localReply
	if err := process.CheckPeer(c); err != nil {
		a.Logger.Warn("a stranger at the agent's socket was refused", "err", err)
		r.Error = err.Error()
	} else {
		var m localMessage
		if err := shim.ReadFrame(c, maxLocal, &m); err != nil {
			// The error of a decoder may quote what it read, and that may be a secret.
			a.Logger.Warn("a malformed message at the agent's socket was refused")
			r.Error = "malformed message"
		} else if r, err = a.obeyLocal(&m); err != nil {
			r.Error = err.Error()
		}
	}
	_ = shim.WriteFrame(c, maxLocal, r)
}
