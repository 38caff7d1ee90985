package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/join"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// Of the cluster of a launch over several hosts: who is silent is lost sooner than where
// a head may be busy with a thousand nodes.
const (
	hostSuspect = 2 * time.Second
	hostLost    = 3500 * time.Millisecond
	farewell    = 10 * time.Second // how long the owner waits for the others at the end
)

// doorkeeper lets hosts in.
type doorkeeper struct {
	r     *hostRun
	own   hello
	token string

	mu    sync.Mutex
	hosts map[string]known
	head  *embedded // nil until it has started
	over  bool
}

func (d *doorkeeper) live(node string) bool {
	for _, n := range d.head.head.Control().Store.View().Nodes() {
		if n.ID == node {
			return n.State != api.NodeLost && !n.Info.Leaving
		}
	}
	return false
}

// admit is the head's word about a host that has the join key.
func (d *doorkeeper) admit(_ context.Context, a join.Admitted) (any, error) {
	var h hello
	if json.Unmarshal(a.Purpose, &h) != nil || h.ID == "" {
		return nil, &join.Refused{Code: "TRP-R002", Exit: api.ExitConflict, Text: "this is the endpoint of a launch, which workers of a standing cluster cannot join"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.over:
		return nil, &join.Refused{Code: "TRP-R003", Exit: api.ExitRetry, Text: "the run is over"}
	case d.head == nil:
		return nil, &join.Refused{Text: "the run is starting", Again: true}
	}
	name, err := admit(&d.own, &h, a.Node, d.hosts, d.live)
	if err != nil {
		return nil, err
	}
	h.Name = name
	_, again := d.hosts[a.Node]
	d.hosts[a.Node] = known{h, time.Now()}
	there := int64(1)
	for node, k := range d.hosts {
		if d.live(node) || time.Since(k.at) < 10*time.Second {
			there++
		}
	}
	word := "joins"
	if again {
		word = "joins again"
	}
	d.r.say("host %s %s with %s; %d of %d:%d hosts", name, word, plural(h.Ranks, "rank"), there, d.own.MinNodes, d.own.MaxNodes)
	return welcome{Name: name, Key: d.r.key, Token: d.token, Hosts: there}, nil
}

// own runs the head of the run and this host's ranks. The error is EADDRINUSE when
// another program has the port of the endpoint.
func (r *hostRun) own(ctx context.Context, key join.Key) error {
	state, err := launchState(r.run)
	if err != nil {
		return err
	}
	if r.key, err = troupe.NewKey(); err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	host, address := r.meet.listen(), r.meet.reachable()
	// Told before anything is touched; the head finds out by itself if it is too late.
	probe, err := net.Listen("tcp", net.JoinHostPort(host, r.meet.port))
	if err != nil {
		return fmt.Errorf("listen at %s, where the hosts are to meet: %w", r.meet.address(), err)
	}
	_ = probe.Close()
	d := &doorkeeper{r: r, own: r.hello(name), hosts: map[string]known{}}
	e, err := startEmbedded(ctx, embeddedOptions{
		state: state, api: net.JoinHostPort(host, r.meet.port), bus: net.JoinHostPort(host, "0"), gpus: "auto", logger: newLogger(logFile(state)),
		orphan: embeddedOrphan, name: name, address: address, labels: r.labels(),
		head: func(o *head.Options) {
			o.Secure, o.JoinKey, o.Admit, o.Names = true, &key, d.admit, []string{r.meet.host}
			o.Timing = control.Timing{Orphan: embeddedOrphan, Suspect: hostSuspect, Lost: hostLost}
		},
		agent: func(a *agent.Agent) error {
			return badEnviron(a.LocalLaunch(r.key, r.environ(address), r.dir, r.words))
		},
	})
	if errors.Is(err, consensus.ErrLocked) || errors.Is(err, agent.ErrLocked) {
		return fail(api.ExitConflict, "TRP-C073", "wait until it has ended, or give this one a run of its own: --rdzv-id NAME", "run %s is being launched already (%s)", r.run, state)
	}
	if err != nil {
		return err
	}
	defer func() {
		d.close()
		ectx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.endAll(ectx); err != nil {
			r.say("some processes may be left: %v", err)
		}
		e.close()
		awaitShims(ectx, filepath.Join(state, "node"), "")
		dropSockets(filepath.Join(state, "node"))
	}()
	cl, err := r.client(state, e)
	if err != nil {
		return err
	}
	if err := endLeftovers(ctx, cl, r.say); err != nil {
		return err
	}
	if d.token, err = viewer(ctx, state, e); err != nil {
		return err
	}
	s := r.spec()
	if s.Owner, err = ownerHere(); err != nil {
		return err
	}
	j, err := cl.SubmitJob(ctx, s, "")
	if err != nil {
		return err
	}
	d.open(e)
	r.say("run %s meets at %s; this host keeps it: if it is lost, the run ends and the same command resumes it", elasticID(r.meet.Meeting), r.meet.address())
	r.out.node = name
	a := r.a
	a.client = cl
	cl.Patience = forever
	tctx, stop := context.WithCancel(ctx)
	go r.tell(tctx, cl, j.ID)
	j, how, err := a.attend(ctx, cl, j, attendance{signals: r.set.Signals, pass: r.pass})
	stop()
	switch {
	case err != nil:
		return err
	case how == stopped:
		return &exitError{code: api.ExitInterrupted}
	case how == timedOut:
		return fail(api.ExitTimeout, "TRP-C074", "give it longer", "the run was stopped: its --timeout of %s is over", a.limitT)
	}
	a.keepErrors(ctx, cl, &j, r.out)
	return a.launchResult(j, r.launchRun)
}

func (d *doorkeeper) open(e *embedded) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.head = e
}

// close lets nobody in any more, and waits until the others have read the end: they
// follow the run through this head.
func (d *doorkeeper) close() {
	d.mu.Lock()
	d.over = true
	e := d.head
	d.mu.Unlock()
	if e == nil {
		return
	}
	c := e.head.Control()
	for end := time.Now().Add(farewell); time.Now().Before(end); {
		changed := c.Store.Changed()
		left := false
		for _, n := range c.Store.View().Nodes() {
			left = left || n.ID != e.node && n.State != api.NodeLost && !n.Info.Leaving
		}
		if !left {
			return
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *hostRun) client(state string, e *embedded) (*troupe.Client, error) {
	token, err := head.ReadToken(filepath.Join(state, "head"), head.AdminTokenFile)
	if err != nil {
		return nil, err
	}
	pin, ok := e.head.Pin()
	if !ok {
		return troupe.New(e.head.APIURL(), token)
	}
	return troupe.New(e.head.APIURL(), token, troupe.WithPin(pin))
}

// viewer is the token by which the other hosts follow the run. It lives as long as the
// folder of the run.
func viewer(ctx context.Context, state string, e *embedded) (string, error) {
	token, err := head.Secret(filepath.Join(state, "head"), head.ViewerTokenFile)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(token))
	return token, e.head.Control().AddViewer(ctx, "hosts", hex.EncodeToString(sum[:]))
}
