package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// A launch that was detached from goes on in a process of its own, the keeper: it takes
// over the folder of the launch's cluster, whose agent finds its ranks again, as after
// any restart. It writes what they write to a file and ends with the run.

const (
	keepWait   = 30 * time.Second // for either side of the handing over
	keepAfter  = 3 * time.Second
	keepPipe   = 3 // descriptor on which a keeper tells how far it is
	outputFile = "output.log"
)

// handOver starts the keeper of a launch, gives up the cluster to it and returns the
// name of the context under which the run is found from now on.
func (a *app) handOver(ctx context.Context, e *embedded, state string, j api.Job) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	out, err := os.OpenFile(filepath.Join(state, outputFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return "", fmt.Errorf("open the file of the output: %w", err)
	}
	defer func() { _ = out.Close() }()
	hear, tell, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = hear.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, append([]string{"launch", "--keep=" + j.ID}, a.words...)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{tell}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = tell.Close()
	if err != nil {
		return "", fmt.Errorf("start the process that keeps the run: %w", err)
	}
	_ = hear.SetReadDeadline(time.Now().Add(keepWait))
	lines := bufio.NewScanner(hear)
	if !lines.Scan() {
		return "", fmt.Errorf("the process that keeps the run did not come up; see %s", out.Name())
	}
	e.close() // the ranks go on without it, for the orphan time
	if !lines.Scan() {
		return "", fmt.Errorf("the process that keeps the run could not take it over; see %s", out.Name())
	}
	return lines.Text(), nil
}

// keep is the keeper's whole life.
func (a *app) keep(ctx context.Context, l *launchRun, id string) error {
	parent := os.NewFile(keepPipe, "parent")
	tell := func(line string) { _, _ = fmt.Fprintln(parent, line) }
	run := runName(l.set, l.script)
	state, err := launchState(run)
	if err != nil {
		return err
	}
	tell("waiting")
	e, err := takeOver(ctx, state)
	if err != nil {
		return err
	}
	h := a.embeddedHost(e, state)
	defer h.close()
	token, err := head.ReadToken(filepath.Join(state, "head"), head.AdminTokenFile)
	if err != nil {
		return err
	}
	if h.client, err = troupe.New(e.head.APIURL(), token); err != nil {
		return err
	}
	cl := h.client
	a.client = cl
	j, err := cl.Job(ctx, id)
	if err != nil {
		return err
	}
	if err := h.environ(ctx, j.Spec.LaunchEnv, launchEnviron(l.set)); err != nil {
		return err
	}
	name := "launch-" + run
	if err := addContextBeside(cluster{Name: name, Address: e.head.APIURL(), State: state, TokenFile: filepath.Join(state, "head", head.AdminTokenFile)}); err != nil {
		return err
	}
	defer func() { _ = dropContext(state) }()
	out, err := newConsole(a, l.set, elasticID(&l.set.Meeting))
	if err != nil {
		return err
	}
	defer out.close()
	tell(name)
	_ = parent.Close()
	cl.Patience = forever
	a.attach, a.quiet = out, true
	j, how, err := a.attend(ctx, cl, j, attendance{signals: l.set.Signals})
	switch {
	case err != nil:
		return err
	case how == stopped:
		return &exitError{code: api.ExitInterrupted}
	}
	a.keepErrors(ctx, cl, &j, out)
	// Nobody waits for this process: it stays until those who follow the run have heard
	// how it ended, which they ask the cluster that ends with it.
	select {
	case <-ctx.Done():
	case <-time.After(keepAfter):
	}
	return a.launchResult(j, *l)
}

// takeOver starts the cluster of a launch as soon as the one before has given it up.
func takeOver(ctx context.Context, state string) (*embedded, error) {
	ctx, cancel := context.WithTimeout(ctx, keepWait)
	defer cancel()
	for {
		e, err := startEmbedded(ctx, launchEmbedded(state))
		if !errors.Is(err, consensus.ErrLocked) && !errors.Is(err, agent.ErrLocked) {
			return e, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// addContextBeside adds a context without making it the current one.
func addContextBeside(x cluster) error {
	c, err := troupe.ReadConfig()
	if err != nil {
		return err
	}
	current := c.Current
	if err := addContext(x); err != nil {
		return err
	}
	if c, err = troupe.ReadConfig(); err != nil {
		return err
	}
	c.Current = current
	return writeConfig(c)
}

// tellKept says where a run that was detached from is found.
func (a *app) tellKept(state, name string, j api.Job) {
	use := "TROUPE_CONTEXT=" + name + " troupe job "
	a.note("detached; the run goes on, its output in %s. Follow it with: %s; stop it with: %s",
		filepath.Join(state, outputFile), strings.Join([]string{use + "logs -f", j.ID}, " "), use+"stop "+j.ID)
}
