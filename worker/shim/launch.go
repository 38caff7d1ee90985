package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
)

var probed = sync.OnceValue(process.Probe)

// Capabilities is what containment can do on this machine, probed once.
func Capabilities() process.Capabilities { return probed() }

func capabilities(cfg *Config) process.Capabilities {
	if cfg.Containment == "fallback" {
		return process.Capabilities{Why: []string{"containment=fallback: cgroups are left unused on purpose"}}
	}
	return probed()
}

// Launch writes cfg to <cfg.Dir>/shim.json, makes the allocation's cgroups and
// starts binary as its shim, in its own session and cgroup, so that it outlives the
// caller. args come before the configuration's path: none for troupe-shim, "shim"
// for the main binary. The caller must Wait for the process while it lives, or it
// stays a zombie. Of the caller's environment only PATH, HOME, LANG and TZ go along.
func Launch(binary string, args []string, cfg Config) (*os.Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return launch(binary, args, cfg, null, true)
}

// prepareDir makes what a shim finds when it starts: its folder, groups and configuration.
func prepareDir(cfg *Config) (path string, groups process.Groups, err error) {
	path = filepath.Join(cfg.Dir, ConfigFile)
	// Written down before they are made: who dies in between leaves nothing unknown.
	planned := process.PlannedGroups(capabilities(cfg), cfg.Alloc, cfg.Limits.Memory)
	cfg.Groups = &planned
	if err := WriteConfig(cfg); err != nil {
		return "", groups, err
	}
	groups, fallbacks := process.NewGroups(capabilities(cfg), cfg.Alloc, cfg.Limits.Memory)
	cfg.Groups, cfg.Fallbacks = &groups, fallbacks
	if groups == planned && len(fallbacks) == 0 {
		return path, groups, nil
	}
	return path, groups, WriteConfig(cfg)
}

// WriteConfig makes an allocation's folder and puts its configuration there in the place of
// the one before, whole.
func WriteConfig(cfg *Config) error {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("make the allocation's folder: %w", err)
	}
	cfg.Version = ProtocolVersion
	path := filepath.Join(cfg.Dir, ConfigFile)
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return fmt.Errorf("write the shim's configuration: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write the shim's configuration: %w", err)
	}
	return nil
}

// launch is Launch with a standard input, and for a spare, which serves no agents yet, without
// the socket that they are heard on.
func launch(binary string, args []string, cfg Config, stdin *os.File, serves bool) (*os.Process, error) {
	path, groups, err := prepareDir(&cfg)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(cfg.Dir, "shim.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the shim's log: %w", err)
	}
	defer out.Close()
	env := []string{}
	for k, v := range baseEnv() {
		env = append(env, k+"="+v)
	}
	env = append(env, storeEnv()...)
	attr := &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{stdin, out, out},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if dir := groups.ShimDir(); dir != "" {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
		}
	}
	argv := append(append([]string{"troupe-shim"}, args...), path)
	if serves {
		// Who starts it listens for it, and hands the socket over: so it can be dialed at once.
		l, err := listenFor(&cfg)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		attr.Files = append(attr.Files, l)
		argv = append(argv, strconv.Itoa(len(attr.Files)-1))
	}
	p, err := os.StartProcess(binary, argv, attr)
	if err == nil && attr.Sys.UseCgroupFD && !process.Born(p.Pid, argv[0]) {
		_, _ = p.Wait()
		err = errors.New("it died at birth")
	}
	if err != nil && attr.Sys.UseCgroupFD {
		attr.Sys.UseCgroupFD = false // it joins by itself
		p, err = os.StartProcess(binary, argv, attr)
	}
	if err != nil {
		return nil, fmt.Errorf("start the shim %s: %w", binary, err)
	}
	return p, nil
}

// listenFor makes the socket that a shim hears agents on.
func listenFor(cfg *Config) (*os.File, error) {
	if err := os.MkdirAll(cfg.SocketDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the socket folder: %w", err)
	}
	l, err := listen(filepath.Join(cfg.SocketDir, AgentSocket))
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	return l.File()
}

// Sweep ends everything that the dead shim of the allocation in dir has left, ranks,
// their children and the saver, and removes its groups, pages and sockets (P6). The
// journal holds what the shim could not tell any more, and is nil if it had not
// written one. Do not call it while the shim lives: see FindShim.
func Sweep(ctx context.Context, dir string) (process.Result, *Journal, error) {
	cfg, err := ReadConfig(filepath.Join(dir, ConfigFile))
	if err != nil {
		return process.Result{}, nil, err
	}
	j, err := ReadJournal(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return process.Result{}, nil, err
	}
	t := process.Target{Cookie: cfg.Cookie, Whole: true}
	switch {
	case j != nil:
		t.Groups = j.Groups
	case cfg.Groups != nil:
		t.Groups = *cfg.Groups
	}
	res := process.Sweep(ctx, t)
	if !res.Clean() {
		return res, j, nil
	}
	if err := t.Groups.Remove(time.Second, false); err != nil {
		return res, j, fmt.Errorf("remove the cgroups of allocation %s: %w", cfg.Alloc, err)
	}
	removeSockets(cfg.SocketDir)
	return res, j, nil
}

// removeSockets removes what a shim made in its socket folder, and the folder if
// nobody put anything else there.
func removeSockets(dir string) {
	for _, name := range []string{AgentSocket, RankSocket, WarmSocket} {
		os.Remove(filepath.Join(dir, name))
	}
	pages, _ := filepath.Glob(filepath.Join(dir, "page-g*-r*"))
	for _, p := range pages {
		os.Remove(p)
	}
	os.Remove(dir)
}
