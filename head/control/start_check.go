package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// startCheckLimit bounds a node's answer; one that does not answer hinders nothing,
	// since its shim looks again before it starts a rank.
	startCheckLimit = 2 * time.Second
	startCheckFor   = 10 * time.Second
	maxStartChecks  = 1024
)

// startChecks hold what nodes said of a job's working folder and program before its
// first attempt, by job.
type startChecks struct {
	mu    sync.Mutex
	byJob map[string]*startCheck
}

type startCheck struct {
	nodes   string
	done    bool
	at      time.Time // of the answer
	refused *api.Reason
	code    int64
	fetch   map[string]wire.Fetch // by node: the package is on its way there
}

// fetchAgain is how often a node is asked that still fetches the job's package.
const fetchAgain = 300 * time.Millisecond

// fetching says which nodes a job waits for with its package, and how far they are.
func (s *startChecks) fetching(job string) map[string]wire.Fetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byJob[job]; c != nil && !c.done {
		return maps.Clone(c.fetch)
	}
	return nil
}

func (s *startChecks) note(c *startCheck, node string, f *wire.Fetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(c.fetch, node)
	if f != nil {
		if c.fetch == nil {
			c.fetch = map[string]wire.Fetch{}
		}
		c.fetch[node] = *f
	}
}

// forget drops what was said for a job that has started or ended.
func (s *startChecks) forget(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byJob, job)
}

// checkStart asks every node of a group that spans several whether the job's folder and
// program are there, so that no rank starts, and none is killed again, because one node
// lacks them. known is false until all have answered. On one node the shim's own check
// comes before any rank starts.
func (h *Head) checkStart(ctx context.Context, v *state.View, j *state.Job) (refused *api.Reason, code int64, known bool) {
	g := v.Group(j.Group)
	if g == nil || j.Last() != nil || j.Spec.Actor != nil {
		h.starts.forget(j.ID)
		return nil, 0, true
	}
	var nodes []string
	for _, b := range g.RankBundles() {
		if b.Node != "" && !slices.Contains(nodes, b.Node) {
			nodes = append(nodes, b.Node)
		}
	}
	if len(nodes) < 2 {
		return nil, 0, true
	}
	slices.Sort(nodes)
	key := strings.Join(nodes, " ")
	s := &h.starts
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byJob[j.ID]
	// An answer holds for a while and not for one look: what else holds up the start would
	// have the nodes asked again with every pass of the loop, which each answer starts.
	if c != nil && c.nodes == key && (!c.done || h.Clock.Now().Sub(c.at) < startCheckFor) {
		return c.refused, c.code, c.done
	}
	if s.byJob == nil || len(s.byJob) >= maxStartChecks {
		s.byJob = map[string]*startCheck{}
	}
	c = &startCheck{nodes: key}
	s.byJob[j.ID] = c
	ask := wire.StartCheck{Job: j.ID, WorkingDir: j.Spec.WorkingDir, Command: j.Spec.Command, Path: j.Spec.Env["PATH"], LaunchEnv: j.Spec.LaunchEnv, Package: j.Spec.Package}
	h.spawn(ctx, func() {
		reason, code := h.askStart(ctx, v, c, nodes, ask)
		s.mu.Lock()
		c.done, c.at, c.refused, c.code = true, h.Clock.Now(), reason, code
		s.mu.Unlock()
		h.Kick()
	})
	return nil, 0, false
}

// askStart asks all nodes at once and returns the first refusal in their order.
func (h *Head) askStart(ctx context.Context, v *state.View, c *startCheck, nodes []string, ask wire.StartCheck) (*api.Reason, int64) {
	data, err := wire.Marshal(ask)
	if err != nil {
		return nil, 0
	}
	limit := startCheckLimit
	if ask.Package != "" {
		limit = h.Timing.Start // for as long as nodes say that they fetch
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	replies := make([]wire.StartCheckReply, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			var err error
			for {
				replies[i], err = h.askStartOf(ctx, n, data)
				h.starts.note(c, n, replies[i].Fetch)
				if err != nil || replies[i].Fetch == nil || h.needsNoStart(ask.Job) || h.Clock.Sleep(ctx, fetchAgain) != nil {
					break
				}
			}
			if err != nil {
				h.Logger.Debug("a node did not say whether a job can start there", "node", n, "job", ask.Job, "err", err)
			}
		})
	}
	wg.Wait()
	for i, r := range replies {
		if r.Code != 0 {
			node := nodeName(v, nodes[i])
			return &api.Reason{
				Code: api.ReasonUserError, Where: node,
				Text: cut(fmt.Sprintf("cannot start on node %s: %s; nothing was started on any node", node, r.Error), 400),
			}, r.Code
		}
	}
	return nil, 0
}

func (h *Head) askStartOf(ctx context.Context, node string, data []byte) (wire.StartCheckReply, error) {
	ctx, cancel := context.WithTimeout(ctx, startCheckLimit)
	defer cancel()
	raw, err := h.Bus.Request(ctx, wire.NodeStartCheck(node), data)
	var r wire.StartCheckReply
	if err == nil {
		err = wire.Unmarshal(raw, &r)
	}
	if err != nil {
		return wire.StartCheckReply{}, err
	}
	return r, nil
}

// needsNoStart reports whether a job needs no start any more.
func (h *Head) needsNoStart(job string) bool {
	j := h.Store.View().Job(job)
	return j == nil || j.State.Terminal() || j.Stop != nil
}
