package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// defaultState is where `up` keeps its cluster.
func defaultState() (string, error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find a state folder: %w; give --state", err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "troupe", "local"), nil
}

func stateFolder(flag string) (string, error) {
	if flag == "" {
		return defaultState()
	}
	abs, err := filepath.Abs(flag)
	if err != nil {
		return "", fmt.Errorf("state folder %s: %w", flag, err)
	}
	return abs, nil
}

type upFlags struct {
	detach        bool
	state         string
	port, busPort int
	gpus, name    string
	orphan        time.Duration
	ready         int
	spot          noticeFlags
}

func (a *app) upCommand() *cobra.Command {
	var o upFlags
	c := &cobra.Command{
		Use: "up", Short: "Start a cluster on this machine: head and worker in one process", Args: cobra.NoArgs, Annotations: daemon,
		Example: "  troupe up -d\n  troupe up --gpus fake:2x80GiB\n  troupe up -d --state /tmp/t --port 0",
		RunE: func(c *cobra.Command, _ []string) error {
			state, err := stateFolder(o.state)
			if err != nil {
				return err
			}
			if err := o.spot.check(); err != nil {
				return err
			}
			if u, alive, err := readUp(state); err != nil {
				return err
			} else if alive {
				return fail(api.ExitConflict, "TRP-C073", "troupe status, or troupe down --state "+state, "a cluster runs on %s already (pid %d, %s)", state, u.PID, u.API)
			}
			if o.detach {
				return a.upDetached(c.Context(), state, o)
			}
			err = a.upForeground(c.Context(), state, o)
			if err != nil && o.ready >= 0 {
				a.tellStarter(o.ready, err)
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.detach, "detach", "d", false, "in the background; returns when it is ready")
	f.StringVar(&o.state, "state", "", "`folder`: of the cluster (default ~/.local/state/troupe/local)")
	f.IntVar(&o.port, "port", 7600, "`port`: of the API on 127.0.0.1; 0 for any free one")
	f.IntVar(&o.busPort, "bus-port", -1, "`port`: of the bus on 127.0.0.1; 0 for any free one (default 7602, with --port 0 any)")
	f.StringVar(&o.gpus, "gpus", "auto", "`what`: auto, none, or fake:2x80GiB")
	f.StringVar(&o.name, "name", "", "`name`: of head and node (default the host's)")
	f.DurationVar(&o.orphan, "orphan-time", embeddedOrphan, "`time`: how long ranks outlive the cluster; a restart within it finds them")
	o.spot.add(c)
	f.IntVar(&o.ready, "ready-fd", -1, "")
	_ = f.MarkHidden("ready-fd")
	return c
}

func (o upFlags) addresses() (string, string) {
	busPort := o.busPort
	if busPort < 0 {
		_, p, _ := net.SplitHostPort(head.DefaultBusAddress)
		busPort, _ = strconv.Atoi(p)
		if o.port == 0 {
			busPort = 0
		}
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)), net.JoinHostPort("127.0.0.1", strconv.Itoa(busPort))
}

func newLogger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if os.Getenv("TROUPE_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

func (a *app) upForeground(ctx context.Context, state string, o upFlags) error {
	noticed := o.spot.listen()
	defer noticed.stop()
	sctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	apiAddr, busAddr := o.addresses()
	e, err := startEmbedded(sctx, embeddedOptions{
		state: state, api: apiAddr, bus: busAddr, gpus: o.gpus, name: o.name, logger: newLogger(a.err), orphan: o.orphan, notice: o.spot,
	})
	if err != nil {
		return err
	}
	defer e.close()
	noticed.pass(sctx, e.agent)
	u, err := e.info()
	if err != nil {
		return err
	}
	if err := writeUp(state, u); err != nil {
		return err
	}
	defer func() { _ = os.Remove(filepath.Join(state, upFile)) }()
	x := cluster{Name: contextName(state), Address: u.API, TokenFile: filepath.Join(state, "head", head.AdminTokenFile), State: state}
	if err := addContext(x); err != nil {
		a.note("the cluster is up, but not known to other commands: %v; use --address %s and TROUPE_TOKEN", err, u.API)
	}
	if o.ready >= 0 {
		f := os.NewFile(uintptr(o.ready), "ready")
		_, _ = fmt.Fprintln(f, "ready")
		_ = f.Close()
	} else {
		_, _ = fmt.Fprintf(a.out, "cluster up at %s (state %s); Ctrl-C ends it, ranks end within %s\n", u.API, state, o.orphan)
	}
	select {
	case <-sctx.Done():
		return nil
	case err := <-e.fail:
		return err
	}
}

// tellStarter hands the reason of a failed start to the `up -d` that waits for it.
func (a *app) tellStarter(fd int, err error) {
	f := os.NewFile(uintptr(fd), "ready")
	if b, jerr := json.Marshal(a.problemOf(err)); jerr == nil {
		_, _ = f.Write(b) // nobody may listen any more
	}
	_ = f.Close()
}

func contextName(state string) string {
	if d, err := defaultState(); err == nil && d == state {
		return "local"
	}
	return filepath.Base(state) + "-" + shortHash(state)
}

// upDetached starts this program again in a session of its own and waits until it is
// ready or has failed; then its own words are the error.
func (a *app) upDetached(ctx context.Context, state string, o upFlags) error {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	logPath := filepath.Join(state, "up.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer func() { _ = log.Close() }()
	at, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	args := []string{
		"up", "--state", state, "--port", strconv.Itoa(o.port), "--bus-port", strconv.Itoa(o.busPort), "--gpus", o.gpus,
		"--name", o.name, "--orphan-time", o.orphan.String(), "--ready-fd", "3",
		"--notice-file", o.spot.file, "--notice-grace", o.spot.grace.String(),
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return fmt.Errorf("start the cluster: %w", err)
	}
	_ = w.Close()
	done := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(r, 64<<10))
		done <- strings.TrimSpace(string(b))
	}()
	limit := 30 * time.Second
	if a.limitT > 0 {
		limit = a.limitT
	}
	select {
	case word := <-done:
		if word == "ready" {
			break
		}
		_ = cmd.Wait() // it has said why
		var p api.Problem
		if err := json.Unmarshal([]byte(word), &p); err != nil || p.Exit == 0 {
			return fail(api.ExitDefect, "TRP-C070", "the whole log: "+logPath, "the cluster ended while it started: %s", tailOf(logPath, at))
		}
		return fail(p.Exit, p.Code, cmp.Or(p.Help, "the whole log: "+logPath), "the cluster did not start: %s", p.Detail)
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		return fail(api.ExitTimeout, "TRP-C074", "the whole log: "+logPath, "the cluster was not ready within %s", limit)
	}
	u, _, err := readUp(state)
	if err != nil {
		return err
	}
	a.one(u, state, func() { _, _ = fmt.Fprintf(a.out, "cluster up at %s (pid %d, state %s)\n", u.API, u.PID, state) })
	a.note("end it with: troupe down%s", downHint(state))
	return cmd.Process.Release()
}

func downHint(state string) string {
	if d, err := defaultState(); err == nil && d == state {
		return ""
	}
	return " --state " + state
}

// tailOf is the last line that was written after an offset.
func tailOf(path string, at int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= at {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(b[at:])), "\n")
	return lines[len(lines)-1]
}

func (a *app) downCommand() *cobra.Command {
	var state string
	c := &cobra.Command{
		Use: "down", Short: "End a cluster that `troupe up` started, its jobs first", Args: cobra.NoArgs,
		Example: "  troupe down\n  troupe down --state /tmp/t --yes",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			dir, err := stateFolder(state)
			if err != nil {
				return err
			}
			if state == "" {
				// The current context may be another `up`.
				if cfg, err := troupe.ReadConfig(); err == nil {
					for _, x := range cfg.Contexts {
						if x.Name == cfg.Current && x.State != "" {
							dir = x.State
						}
					}
				}
			}
			return a.down(ctx, dir)
		},
	}
	c.Flags().StringVar(&state, "state", "", "`folder`: of the cluster (default that of the current context)")
	return c
}

func (a *app) down(ctx context.Context, dir string) error {
	u, alive, err := readUp(dir)
	if err != nil {
		return err
	}
	if !alive {
		if err := dropContext(dir); err != nil {
			return err
		}
		return fail(api.ExitNotFound, "TRP-C066", "troupe context list", "no cluster runs on %s", dir)
	}
	if err := a.stopJobs(ctx, dir, u); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(u.PID, 0)
	if err == nil {
		defer func() { _ = unix.Close(pidfd) }()
		err = unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", u.PID, err)
	}
	if err == nil {
		if err := waitGone(ctx, pidfd, 20*time.Second); err != nil {
			return fail(api.ExitTimeout, "TRP-C074", fmt.Sprintf("kill -9 %d ends it by force", u.PID), "process %d has not ended: %v", u.PID, err)
		}
	}
	awaitShims(ctx, filepath.Join(dir, "node"), "")
	dropSockets(filepath.Join(dir, "node"))
	if err := dropContext(dir); err != nil {
		return err
	}
	a.one(map[string]any{"state": dir, "pid": u.PID, "down": true}, dir, func() { _, _ = fmt.Fprintln(a.out, "cluster down") })
	return nil
}

// waitGone waits for the process behind a pidfd.
func waitGone(ctx context.Context, pidfd int, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 200)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("still there after %s", limit)
}

// stopJobs ends the live jobs of a cluster before it goes down.
func (a *app) stopJobs(ctx context.Context, dir string, u upInfo) error {
	token, err := head.ReadToken(filepath.Join(dir, "head"), head.AdminTokenFile)
	if err != nil {
		return err
	}
	cl, err := troupe.New(u.API, token)
	if err != nil {
		return err
	}
	rctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	l, err := cl.Jobs(rctx, 0)
	if err != nil {
		a.note("the head does not answer (%v); its process is ended all the same, ranks end by themselves", err)
		return nil
	}
	var live []api.Job
	for _, j := range l.Items {
		if !j.State.Terminal() {
			live = append(live, j)
		}
	}
	if len(live) == 0 {
		return nil
	}
	names := make([]string, 0, len(live))
	for _, j := range live {
		names = append(names, j.ID)
	}
	if err := a.confirm(fmt.Sprintf("%s will be stopped: %s", plural(int64(len(live)), "live job"), strings.Join(names, ", "))); err != nil {
		return err
	}
	for _, j := range live {
		if _, err := cl.StopJob(rctx, j.ID, 5*time.Second, "the cluster goes down"); err != nil {
			a.note("job %s: %s", j.ID, clean(a.problemOf(err).Detail))
		}
	}
	return nil
}

// confirm asks on a terminal; elsewhere it wants --yes.
func (a *app) confirm(what string) error {
	if a.yes {
		return nil
	}
	if f, ok := a.in.(*os.File); ok && a.isTTY() && isTerminal(f) {
		_, _ = fmt.Fprintf(a.err, "%s. Go on? [y/N] ", what)
		var word string
		_, _ = fmt.Fscanln(f, &word)
		if strings.EqualFold(word, "y") || strings.EqualFold(word, "yes") {
			return nil
		}
		return &exitError{code: api.ExitInterrupted, text: "nothing was changed"}
	}
	return fail(api.ExitUsage, "TRP-C064", "add --yes", "%s; nobody can be asked here", what)
}
