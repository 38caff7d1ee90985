package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/worker/agent"
)

func (a *app) headCommand() *cobra.Command {
	c := &cobra.Command{Use: "head", Short: "A head as a process of its own: init, start", Example: "  troupe head init --state /var/lib/troupe\n  troupe head start --state /var/lib/troupe"}
	var state, name, apiAddr, busAddr, keyFile string
	var orphan, lease time.Duration
	initC := &cobra.Command{
		Use: "init", Short: "Create a cluster, once", Args: cobra.NoArgs, Example: "  troupe head init --state /var/lib/troupe",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := ownFolder(c, state)
			if err != nil {
				return err
			}
			if err := head.Init(dir); err != nil {
				return err
			}
			a.one(map[string]string{"state": dir, "adminTokenFile": filepath.Join(dir, head.AdminTokenFile), "nodeTokenFile": filepath.Join(dir, head.NodeTokenFile)}, dir, func() {
				_, _ = fmt.Fprintf(a.out, "cluster created in %s\nadmin token: %s\nnode token:  %s\n", dir, filepath.Join(dir, head.AdminTokenFile), filepath.Join(dir, head.NodeTokenFile))
			})
			a.note("start it with: troupe head start --state %s", dir)
			return nil
		},
	}
	start := &cobra.Command{
		Use: "start", Short: "Start a head on a folder that init has made", Args: cobra.NoArgs, Annotations: daemon,
		Example: "  troupe head start --state /var/lib/troupe\n  troupe head start --state /var/lib/troupe --api-address 0.0.0.0:7600 --bus-address 0.0.0.0:7602\n  troupe head start --state /tmp/h --api-address 127.0.0.1:0 --bus-address 127.0.0.1:0",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := ownFolder(c, state)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if !c.Flags().Changed("bus-address") {
				busAddr = besides(apiAddr, busAddr)
			}
			o := head.Options{
				Dir: dir, Name: name, APIAddress: apiAddr, BusAddress: busAddr, Logger: newLogger(a.err), Version: versionInfo(),
				Timing: control.Timing{Orphan: orphan, LeaseStrict: lease},
			}
			if lease < 5*time.Second || lease > 10*time.Minute {
				return usage("--lease %s: want 5s to 10m", lease)
			}
			if onlyLoopback(apiAddr) != onlyLoopback(busAddr) {
				return usage("--api-address %s and --bus-address %s: both on loopback, or both wider", apiAddr, busAddr)
			}
			if !onlyLoopback(apiAddr) {
				key, err := joinKey(keyFile)
				if err != nil {
					return err
				}
				o.JoinKey = &key
			}
			h, err := head.Start(o)
			if err != nil {
				return err
			}
			defer func() { _ = h.Close() }()
			if err := h.WaitReady(ctx); err != nil {
				return err
			}
			x := cluster{Name: contextName(dir), Address: h.APIURL(), TokenFile: filepath.Join(dir, head.AdminTokenFile), State: dir}
			if pin, ok := h.Pin(); ok {
				x.CA = pin.String()
			}
			if err := addContext(x); err != nil {
				a.note("not known to other commands: %v; use --address %s and TROUPE_TOKEN", err, h.APIURL())
			}
			_, _ = fmt.Fprintf(a.out, "head ready at %s, bus %s\n", h.APIURL(), h.BusURL())
			if x.CA != "" {
				a.note("hosts with the join key join by: troupe worker start --head HOST:%s --state FOLDER", portOf(h.APIURL()))
				a.note("its certificates lead to %s (TROUPE_CA, or ca in a context)", x.CA)
			}
			select {
			case <-ctx.Done():
				return nil
			case err := <-h.Failed():
				return err
			}
		},
	}
	for _, x := range []*cobra.Command{initC, start} {
		x.Flags().StringVar(&state, "state", "", "`folder`: of the head")
	}
	start.Flags().StringVar(&name, "name", "", "`name`: for people (default the host's)")
	start.Flags().StringVar(&apiAddr, "api-address", head.DefaultAPIAddress, "`address`: of the API; beyond loopback with TLS")
	start.Flags().StringVar(&busAddr, "bus-address", head.DefaultBusAddress, "`address`: of the bus; beyond loopback with TLS on both sides")
	start.Flags().StringVar(&keyFile, "join-key", "", "`file`: the key that hosts must prove to join (default ~/.config/troupe/join.key)")
	start.Flags().DurationVar(&lease, "lease", time.Minute, "`time`: how long ranks outlive contact with the head (strict class), 5s to 10m; their work starts elsewhere only after it")
	start.Flags().DurationVar(&orphan, "orphan-time", 10*time.Minute, "`time`: how long ranks outlive contact with the head (fast class)")
	c.AddCommand(initC, start)
	return c
}

func (a *app) workerCommand() *cobra.Command {
	c := &cobra.Command{Use: "worker", Short: "A node agent as a process of its own: start, restart", Example: "  troupe worker start --head head-01 --state /var/lib/troupe-node"}
	var state, headAddr, tokenFile, keyFile, localAddr, name, gpus, cpus, memory string
	var spot noticeFlags
	var labels []string
	start := &cobra.Command{
		Use: "start", Short: "Start the agent of this node", Args: cobra.NoArgs, Annotations: daemon,
		Example: "  troupe worker start --head head-01 --state /var/lib/troupe-node\n  troupe worker start --head 10.0.0.1:7600 --local-addr 10.0.0.7 --state /var/lib/troupe-node\n  troupe worker start --head head-01 --state /var/lib/troupe-node --notice-file /run/spot-notice --notice-grace 90s\n  troupe worker start --head nats://127.0.0.1:7602 --token-file /var/lib/troupe/node.token --state /var/lib/troupe-node",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := ownFolder(c, state)
			if err != nil {
				return err
			}
			if err := spot.check(); err != nil {
				return err
			}
			noticed := spot.listen()
			defer noticed.stop()
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			log := newLogger(a.err)
			link := workerLink{a: a, head: headAddr, tokenFile: tokenFile, keyFile: keyFile, local: localAddr}
			id, err := link.open(ctx, c, dir)
			if err != nil {
				return err
			}
			o, err := agentOptions(dir, id, gpus, log)
			if err != nil {
				return err
			}
			o.Name, o.OwnProcess = name, true
			o.NoticeFile, o.NoticeGrace = spot.file, spot.grace
			if u, err := url.Parse(link.busURL); err == nil {
				o.Heads = []string{u.Host}
			}
			if o.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if cpus != "" {
				if o.CPU, err = unit.ParseMilliCPU(cpus); err != nil {
					return usage("--cpus: %v", err)
				}
			}
			if memory != "" {
				if o.Memory, err = unit.ParseBytes(memory); err != nil {
					return usage("--memory: %v", err)
				}
			}
			o.ShimAccess = link.shimAccess()
			if o.Bus, o.Address, err = link.connect(ctx, log); err != nil {
				return err
			}
			defer o.Bus.Close()
			rctx, restart := context.WithCancel(ctx)
			defer restart()
			var again atomic.Bool
			o.OnRestart = func() {
				again.Store(true)
				restart()
			}
			ag, err := agent.New(o)
			if err != nil {
				return err
			}
			defer dropSockets(dir)
			defer ag.Close()
			noticed.pass(rctx, ag)
			_, _ = fmt.Fprintf(a.out, "node %s, head %s\n", id, link.busURL)
			if err := runAgent(rctx, ag); err != nil || !again.Load() {
				return err
			}
			o.Bus.Close()
			return startAgain()
		},
	}
	f := start.Flags()
	f.StringVar(&state, "state", "", "`folder`: of the node")
	f.StringVar(&headAddr, "head", "nats://"+head.DefaultBusAddress, "`address`: of the head's API, to join it; with --token-file that of its bus on this machine, nats://host:port")
	f.StringVar(&tokenFile, "token-file", "", "`file`: with the node token of a head on this machine")
	f.StringVar(&keyFile, "join-key", "", "`file`: the key that the hosts share (default ~/.config/troupe/join.key)")
	f.StringVar(&localAddr, "local-addr", "", "`address`: where other nodes reach this one (default that of the way to the head)")
	f.StringVar(&name, "name", "", "`name`: of the node (default the host's)")
	f.StringVar(&gpus, "gpus", "auto", "`what`: auto, none, or fake:2x80GiB")
	f.StringVar(&cpus, "cpus", "", "`N`: CPUs to offer (default all)")
	f.StringVar(&memory, "memory", "", "`size`: memory to offer (default all)")
	spot.add(start)
	f.StringArrayVar(&labels, "label", nil, "`NAME=VALUE`: of the node; may be repeated")
	c.AddCommand(start, a.workerRestartCommand())
	return c
}

// ownFolder is the folder of a head or node: unlike that of `up` it has no default,
// because two of them may live on one machine.
func ownFolder(c *cobra.Command, flag string) (string, error) {
	if flag == "" {
		return "", fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" --state /var/lib/troupe", "%s wants --state: the folder that it keeps", c.CommandPath())
	}
	return stateFolder(flag)
}

// runAgent serves until ctx ends. An agent that is told to end says so first: whoever ends
// it mostly starts it again, and its ranks go on meanwhile.
func runAgent(ctx context.Context, ag *agent.Agent) error {
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = ag.AnnounceRestart(rctx) // a head that does not hear it judges by silence
		cancel()
	})()
	if err := ag.Run(rctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
