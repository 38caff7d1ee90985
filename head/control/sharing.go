package control

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// proof is what is known of a store and a set of nodes.
type proof struct {
	done    bool
	refused string // why no step can be saved there
}

// shared proves, before an attempt starts, that all of its nodes see one store: each
// writes a nonce and reads the others'. One node alone needs no proof of a directory; of a
// bucket it learns here what its credentials may do. known is false while that is under
// way. What was proven of nodes stays proven for them under this leader, so that a restart
// in place waits for nothing.
func (c *checkpoints) shared(ctx context.Context, store string, nodes []string) (refused string, known bool) {
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if store == "" || len(nodes) < 2 && !checkpoint.Remote(store) {
		return "", true
	}
	key := "shared/" + store + "/" + strings.Join(nodes, ",")
	c.mu.Lock()
	p := c.proofs[key]
	c.mu.Unlock()
	if p != nil && p.done {
		return p.refused, true
	}
	c.once(ctx, key, func() {
		why, final := c.prove(ctx, store, nodes)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if len(c.proofs) >= maxProofs {
			c.proofs = map[string]*proof{}
		}
		c.proofs[key] = &proof{done: true, refused: why}
		c.mu.Unlock()
		if !final {
			// Nothing was proven either way: the attempt starts, and the next one asks again.
			c.h.spawn(ctx, func() {
				_ = c.h.Clock.Sleep(ctx, adoptFor)
				c.mu.Lock()
				delete(c.proofs, key)
				c.mu.Unlock()
			})
		}
		c.h.Kick()
	})
	return "", false
}

const maxProofs = 10_000

// prove carries the three steps out on all nodes. final is false when a node could not be
// asked, or its store not be read: that says nothing about the store, and each save will
// say what is wrong.
func (c *checkpoints) prove(ctx context.Context, store string, nodes []string) (why string, final bool) {
	h := c.h
	v := h.Store.View()
	nonces := make([]string, len(nodes))
	for i := range nodes {
		var b [12]byte
		if err := h.Random(b[:]); err != nil {
			return "", false
		}
		nonces[i] = hex.EncodeToString(b[:])
	}
	type answer struct {
		reply checkpoint.ProbeReply
		err   error
	}
	all := func(order func(i int) checkpoint.ProbeOrder) []answer {
		out := make([]answer, len(nodes))
		done := make(chan struct{}, len(nodes))
		for i, n := range nodes {
			go func() {
				defer func() { done <- struct{}{} }()
				r, err := h.ask(ctx, v, []string{n}, wire.Task{Kind: wire.TaskProbe, Run: "probe", Store: store, Data: checkpoint.NewProbeTask(order(i))})
				if err == nil && r.Error != "" {
					err = fmt.Errorf("%s", r.Error)
				}
				if err == nil {
					err = json.Unmarshal(r.Data, &out[i].reply)
				}
				out[i].err = err
			}()
		}
		for range nodes {
			<-done
		}
		return out
	}
	defer all(func(i int) checkpoint.ProbeOrder { return checkpoint.ProbeOrder{Forget: nonces[i]} })
	var cannot []string
	for i, a := range all(func(i int) checkpoint.ProbeOrder { return checkpoint.ProbeOrder{Write: nonces[i]} }) {
		if a.err != nil {
			if strings.Contains(a.err.Error(), checkpoint.ErrNoCreateOnly.Error()) {
				return a.err.Error(), true
			}
			h.Logger.Warn("a node cannot write to the checkpoint store", "node", nodeName(v, nodes[i]), "store", store, "err", a.err)
			cannot = append(cannot, nodeName(v, nodes[i]))
		}
	}
	if len(cannot) > 0 {
		return "", false
	}
	blind := map[string][]string{} // node → whose nonces it does not see
	for i, a := range all(func(int) checkpoint.ProbeOrder { return checkpoint.ProbeOrder{Look: nonces} }) {
		if a.err != nil {
			return "", false
		}
		for _, m := range a.reply.Missing {
			if k := slices.Index(nonces, m); k >= 0 && k != i {
				blind[nodeName(v, nodes[i])] = append(blind[nodeName(v, nodes[i])], nodeName(v, nodes[k]))
			}
		}
	}
	if len(blind) == 0 {
		return "", true
	}
	var parts []string
	for _, n := range sortedNames(blind) {
		parts = append(parts, fmt.Sprintf("%s does not see what %s wrote", n, text(blind[n])))
	}
	return fmt.Sprintf("the checkpoint store %s is not shared: %s; mount the same folder on all nodes, use s3://…, or run on one node", store, text(parts)), true
}

func sortedNames(m map[string][]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// storeReady prepares what the start of an attempt needs of its store: on the first one
// the run's folder is adopted; always the nodes are proven to share it. ready is false
// while that is under way; refused says why no step can be saved.
func (h *Head) storeReady(ctx context.Context, v *state.View, j *state.Job, nodes []string) (refused string, ready bool) {
	if j.Spec.Actor != nil {
		return "", true
	}
	if j.Last() != nil {
		h.ck.mu.Lock()
		delete(h.ck.adopting, j.ID)
		h.ck.mu.Unlock()
	} else if !h.ck.adoptFirst(ctx, v, j, nodes) {
		return "", false
	}
	return h.ck.shared(ctx, h.storeOf(v, j), nodes)
}
