package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// A launch over several hosts: the same command runs on each, and whoever owns the
// endpoint runs the head of the run beside its own ranks; the others join it. This file
// says where the hosts meet and who owns that place; rendezvous_host.go is the owner's
// side, rendezvous_join.go that of the others, rendezvous_follow.go what both do then.

// Defaults of torchrun.
const (
	c10dPort    = "29400"
	staticPort  = "29500"
	joinTimeout = 10 * time.Minute
	lastCall    = 30 * time.Second
)

// meeting is what the command line says of where and how hosts meet.
type meeting struct {
	*torchrun.Meeting
	host, port     string
	owner          *bool // who owns the endpoint, if the command line says it
	join, lastCall time.Duration
	keyFile        string
	store          string // where checkpoints are, seen by all hosts; "": the owner's own folder
}

// overHosts reports whether a launch is one over several hosts.
func overHosts(m *torchrun.Meeting) bool { return !m.Standalone && m.MaxNodes > 1 }

func meetingOf(m *torchrun.Meeting) (*meeting, error) {
	o := &meeting{Meeting: m, join: joinTimeout, lastCall: lastCall, keyFile: m.Conf["token_file"], store: m.Conf["store"]}
	if m.Backend != "static" && m.Backend != "c10d" {
		return nil, fail(api.ExitNever, "TRP-C078", "use --rdzv-backend=c10d", "--rdzv-backend=%s is not in this version; static and c10d are", m.Backend)
	}
	if m.NodeRankGiven && m.NodeRank >= m.MaxNodes {
		return nil, usage("--node-rank=%d: with --nnodes=%d:%d it is less than %d", m.NodeRank, m.MinNodes, m.MaxNodes, m.MaxNodes)
	}
	if m.LocalAddr != "" && net.ParseIP(m.LocalAddr) == nil && !resolves(m.LocalAddr) {
		return nil, usage("--local-addr=%s: an address or a name of this host", m.LocalAddr)
	}
	if o.store != "" && !strings.Contains(o.store, "://") {
		if !filepath.IsAbs(o.store) {
			return nil, usage("--rdzv-conf: store=%s is not absolute", o.store)
		}
		// A folder that is not there may be a mount that is missing, so nobody makes it.
		if fi, err := os.Stat(o.store); err != nil || !fi.IsDir() {
			return nil, missing("make it on a file system that all hosts see: mkdir -p "+o.store, "--rdzv-conf: store=%s is no folder on this host", o.store)
		}
	}
	if err := o.where(); err != nil {
		return nil, err
	}
	for _, k := range []struct {
		name string
		to   *time.Duration
	}{{"join_timeout", &o.join}, {"last_call_timeout", &o.lastCall}} {
		text, ok := m.Conf[k.name]
		if !ok {
			continue
		}
		s, err := strconv.ParseFloat(text, 64)
		if err != nil || s < 0 || s > 1e7 {
			return nil, usage("--rdzv-conf: %s=%s is not a number of seconds", k.name, text)
		}
		*k.to = time.Duration(s * float64(time.Second))
	}
	if text, ok := m.Conf["is_host"]; ok {
		yes := slices.Contains([]string{"1", "true", "t", "yes", "y"}, strings.ToLower(text))
		o.owner = &yes
	}
	return o, nil
}

// where finds the endpoint: of the static backend the master's address unless one is
// given, and there node 0 owns it.
func (o *meeting) where() error {
	at, port := o.Endpoint, c10dPort
	if o.Backend == "static" {
		port = staticPort
		if o.MasterPort != 0 {
			port = strconv.FormatInt(o.MasterPort, 10)
		}
		at = cmp.Or(at, net.JoinHostPort(o.MasterAddr, port))
		if o.NodeRankGiven {
			first := o.NodeRank == 0
			o.owner = &first
		}
	}
	if at == "" {
		return usage("--nnodes=%d:%d: --rdzv-endpoint=HOST[:PORT] says where the hosts meet", o.MinNodes, o.MaxNodes)
	}
	host, given, err := net.SplitHostPort(at)
	if err != nil {
		host, given = strings.Trim(at, "[]"), port
	}
	if n, err := strconv.Atoi(given); host == "" || strings.ContainsAny(host, "/@ ") || strings.Contains(host, ":") && net.ParseIP(host) == nil || err != nil || n < 1 || n > 65535 {
		return usage("--rdzv-endpoint=%s is not HOST[:PORT]", at)
	}
	o.host, o.port = host, given
	return nil
}

func (o *meeting) address() string { return net.JoinHostPort(o.host, o.port) }

// here reports whether the endpoint is on this host: by its name, or by an address of
// it that one of our interfaces has.
func (o *meeting) here() bool {
	if name, err := os.Hostname(); err == nil && (strings.EqualFold(o.host, name) || strings.EqualFold(o.host, strings.SplitN(name, ".", 2)[0])) {
		return true
	}
	own := ownAddresses()
	for _, ip := range addressesOf(o.host) {
		if ip.IsLoopback() || slices.ContainsFunc(own, ip.Equal) {
			return true
		}
	}
	return false
}

func ownAddresses() []net.IP {
	var out []net.IP
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			out = append(out, n.IP)
		}
	}
	return out
}

func addressesOf(host string) []net.IP {
	if ip := net.ParseIP(host); ip != nil {
		return []net.IP{ip}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil
	}
	out := make([]net.IP, 0, len(found))
	for _, a := range found {
		out = append(out, a.IP)
	}
	return out
}

func resolves(host string) bool { return len(addressesOf(host)) > 0 }

// reachable is this host's own address for the others: what --local-addr says, else what
// the endpoint's name leads to here, else the address on the way out.
func (o *meeting) reachable() string {
	if o.LocalAddr != "" {
		if ips := addressesOf(o.LocalAddr); len(ips) > 0 {
			return ips[0].String()
		}
	}
	own := ownAddresses()
	for _, ip := range addressesOf(o.host) {
		if slices.ContainsFunc(own, ip.Equal) && (!ip.IsLoopback() || o.local()) {
			return ip.String()
		}
	}
	if o.local() {
		return "127.0.0.1"
	}
	for _, ip := range own {
		if ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	return "127.0.0.1"
}

// listen is the address that the owner listens on: every one of this host, since others
// may know it by another one than its name leads to here.
func (o *meeting) listen() string {
	if o.local() {
		return "127.0.0.1"
	}
	for _, ip := range addressesOf(o.host) {
		if ip.To4() == nil {
			return "::"
		}
	}
	return "0.0.0.0"
}

// local: the endpoint is on loopback, so all "hosts" are this machine.
func (o *meeting) local() bool {
	ip := net.ParseIP(o.host)
	return o.host == "localhost" || ip != nil && ip.IsLoopback()
}

// hostRun is one host's part of a launch over several.
type hostRun struct {
	a *app
	launchRun
	meet *meeting
	dir  string
	run  string
	// words are what ranks of this host run.
	words []string
	out   *console
	key   string // under which the ranks' environment is handed to the agent
	// seen is the run's job as it was told last.
	seen atomic.Pointer[api.Job]
}

// launchHosts runs this host's part.
func (a *app) launchHosts(ctx context.Context, l launchRun) error {
	m, err := meetingOf(&l.set.Meeting)
	if err != nil {
		return err
	}
	r := &hostRun{a: a, launchRun: l, meet: m, run: runName(l.set, l.script)}
	if r.dir, err = os.Getwd(); err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	if err := checkWrapped(r.dir, l.wrap, l.command); err != nil {
		return err
	}
	r.words = slices.Concat(l.wrap, l.command)
	key, err := joinKey(m.keyFile)
	if err != nil {
		return err
	}
	if r.out, err = newConsole(a, l.set, elasticID(m.Meeting)); err != nil {
		return err
	}
	defer r.out.close()
	quiet := a.quiet
	a.quiet = true // torchrun says nothing about states; what is said goes by say
	defer func() { a.quiet = quiet }()
	a.attach = r.out
	if upRuns() {
		r.say("a cluster of troupe up runs here too, and knows nothing of this run: both may give out the same GPUs")
	}
	if m.owner == nil && m.here() || m.owner != nil && *m.owner {
		err = r.own(ctx, key)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		if m.owner != nil {
			return fail(api.ExitConflict, "TRP-C073", "end the other program, or name another port on every host", "port %s of this host, where the hosts are to meet, is taken", m.port)
		}
		// Another launch on this host owns it: be one of its hosts.
	}
	return r.join(ctx, key)
}

// say tells people what torchrun tells nobody; it is about the hosts, not the ranks.
func (r *hostRun) say(format string, args ...any) {
	r.a.errLine("[troupe] "+format, args...)
}

// spec is the job over all hosts.
func (r *hostRun) spec() api.JobSpec {
	s := r.launchRun.spec(r.dir, r.run, elasticID(r.meet.Meeting))
	s.LaunchEnv, s.Checkpoint.Store = r.key, r.meet.store
	s.Hosts = &api.HostsSpec{
		Min: r.meet.MinNodes, Max: r.meet.MaxNodes, LastCall: unit.Duration(max(r.meet.lastCall, 1)), Join: unit.Duration(max(r.meet.join, 1)),
	}
	return s
}

// labels are what this host brings.
func (r *hostRun) labels() map[string]string {
	l := map[string]string{api.LabelRanks: strconv.FormatInt(r.ranks, 10)}
	if r.meet.NodeRankGiven {
		l[api.LabelNodeRank] = strconv.FormatInt(r.meet.NodeRank, 10)
	}
	return l
}

// environ is what ranks on this host get: the environment of this command, and the
// interface that leads to the other hosts, which gloo would else guess by host name.
func (r *hostRun) environ(address string) []string {
	env := launchEnviron(r.set)
	if _, set := os.LookupEnv("GLOO_SOCKET_IFNAME"); !set {
		if name := interfaceOf(address); name != "" {
			env = append(env, "GLOO_SOCKET_IFNAME="+name)
		}
	}
	return env
}

func interfaceOf(address string) string {
	ip := net.ParseIP(address)
	all, err := net.Interfaces()
	if ip == nil || ip.IsLoopback() || err != nil {
		return ""
	}
	for _, i := range all {
		as, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return i.Name
			}
		}
	}
	return ""
}

// hostFolder is where the agent of one host of a launch lives: by host name, since homes
// may be shared, and one beside another when several run on one host.
func hostFolder(run string) (dir string, unlock func(), err error) {
	state, err := launchState(run)
	if err != nil {
		return "", nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	const most = 64
	for n := 1; n <= most; n++ {
		dir = filepath.Join(state, "hosts", name)
		if n > 1 {
			dir += "-" + strconv.Itoa(n)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", nil, fmt.Errorf("make the state folder: %w", err)
		}
		f, err := os.OpenFile(filepath.Join(dir, "launch.lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", nil, fmt.Errorf("lock the state folder: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return dir, func() { _ = f.Close() }, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return "", nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
	return "", nil, fail(api.ExitConflict, "TRP-C073", "end some of them", "%d launches of run %s are on this host already", most, run)
}
