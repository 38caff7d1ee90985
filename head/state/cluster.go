package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func refuse(code, text string) *Refused { return &Refused{Code: code, Text: text} }

func createCluster(t *tx, c CreateCluster) any {
	if t.meta.Cluster != "" {
		return refuse("exists", "the cluster "+t.meta.Cluster+" exists already")
	}
	if c.Cluster == "" || len(c.Life) != 8 {
		return refuse("invalid", "a cluster needs an id and a life of 8 hex digits")
	}
	t.meta.Cluster, t.meta.Life, t.meta.Store = c.Cluster, c.Life, c.Store
	t.meta.Created, t.meta.Level, t.meta.Epoch = t.now, wire.Level, 1
	for i := range c.Tokens {
		tok := c.Tokens[i]
		tok.Created = t.now
		t.put(tToken, &tok)
	}
	t.event("cluster-created", "cluster/"+c.Cluster, "feature level %d", t.meta.Level)
	return nil
}

func registerNode(t *tx, c RegisterNode) any {
	if c.ID == "" || c.Info.Session == "" {
		return refuse("invalid", "a node needs an id and a session")
	}
	if c.Info.Level < t.meta.Level {
		return refuse("invalid", "the node's software is older than the cluster's feature level")
	}
	n := Node{ID: c.ID, Registered: t.now}
	old := t.Node(c.ID)
	if old != nil {
		if old.older(&c.Info, c.Seq) {
			return refuse("stale", fmt.Sprintf("registration %d of session %s of node %s is not newer than the one that stands", c.Seq, c.Info.Session, c.ID))
		}
		n = *old
	}
	n.Seq = c.Seq
	n.Info, n.State, n.Why, n.Changed, n.Index, n.Hold = c.Info, api.NodeReady, "", t.now, t.index, 0
	void := ""
	if old != nil && old.Info.BootID != c.Info.BootID {
		void = n.rebooted()
	}
	t.put(tNode, &n)
	switch {
	case old == nil:
		t.event("node-joined", "node/"+c.ID, "%s CPU, %s, version %s", c.Info.CPU, plural(len(c.Info.GPUs), "GPU"), c.Info.Version)
	case old.Info.BootID != c.Info.BootID:
		t.event("node-rebooted", "node/"+c.ID, "a new boot id: nothing of the former boot runs%s", void)
	case old.Info.Session != c.Info.Session:
		t.event("node-returned", "node/"+c.ID, "the agent was started again; %d allocations found", len(c.Present))
	case c.Info.Leaving && !old.Info.Leaving:
		t.event("node-leaving", "node/"+c.ID, "it takes nothing new and ends what it runs")
	case old.State != api.NodeReady:
		t.event("node-returned", "node/"+c.ID, "it was %s", old.State)
	}
	present := map[string]bool{}
	for _, id := range c.Present {
		present[id] = true
	}
	for _, a := range t.AllocsOn(c.ID) {
		if a.Gone {
			continue
		}
		w := *a
		switch {
		case a.BootID != c.Info.BootID:
			// A new boot proves that nothing of it runs (P2).
			w.Lost, w.Ended, w.Gone, w.FailedAt = true, true, true, t.now
			t.event("alloc-lost", "job/"+a.Job, "node %s was rebooted under %s", c.Info.Name, a.ID)
		case !present[a.ID] && a.Acked > 0:
			// The agent swept at its start (P6) and found neither shim nor ranks.
			w.Lost, w.Ended, w.Gone, w.FailedAt = true, true, true, t.now
			t.event("alloc-lost", "job/"+a.Job, "shim and ranks of %s are gone from node %s", a.ID, c.Info.Name)
		default:
			w.Lost = false
		}
		t.put(tAlloc, &w)
		if w.Gone {
			t.afterGone(&w)
		}
	}
	return nil
}

// older reports whether a registration was said before the one that stands, or is the
// same. One that comes late or twice must not count: what it does not name may have
// started since (P2, I12).
func (n *Node) older(info *wire.NodeInfo, seq uint64) bool {
	if info.Started != n.Info.Started {
		return info.Started < n.Info.Started
	}
	return info.Session == n.Info.Session && seq <= n.Seq
}

func setNodeState(t *tx, c SetNodeState) any {
	n := t.Node(c.ID)
	if n == nil {
		return refuse("not-found", "no node "+c.ID)
	}
	if c.Session != "" && n.Info.Session != c.Session {
		return refuse("stale", "node "+c.ID+" has returned under a new session")
	}
	if n.State == c.State {
		return nil
	}
	w := *n
	w.State, w.Why, w.Changed, w.Index, w.Hold = c.State, c.Why, t.now, t.index, c.Hold
	t.put(tNode, &w)
	t.event("node-"+lower(string(c.State)), "node/"+c.ID, "%s", c.Why)
	for _, a := range t.AllocsOn(c.ID) {
		if lost := c.State == api.NodeLost; !a.Gone && a.Lost != lost && !(a.Ended && a.Lost) {
			aw := *a
			aw.Lost, aw.FailedAt = lost, t.now
			t.put(tAlloc, &aw)
		}
	}
	return nil
}

// plural counts things in words: "1 node", "4 nodes".
func plural[N int | int64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// nodeName is what people know a node by.
func (v *View) nodeName(id string) string {
	if n := v.Node(id); n != nil && n.Info.Name != "" {
		return n.Info.Name
	}
	return id
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func raiseGeneration(t *tx, c RaiseGeneration) any {
	epoch, counter := c.Above>>48, c.Above&(1<<48-1)
	if epoch > t.meta.Epoch {
		t.meta.Epoch = epoch
	}
	if counter > t.meta.Counter {
		t.meta.Counter = counter
		t.event("generation-raised", "cluster/"+t.meta.Cluster, "above %d", c.Above)
	}
	return nil
}

// nextGeneration draws a generation that is higher than every earlier one (P3):
// restore epoch in the upper 16 bits, a counter below.
func (t *tx) nextGeneration() uint64 {
	t.meta.Counter++
	return t.meta.Epoch<<48 | t.meta.Counter
}

func addToken(t *tx, c AddToken) any {
	if len(c.Token.Hash) != 64 {
		return refuse("invalid", "a token is stored as the hex SHA-256 of its bytes")
	}
	c.Token.Created = t.now
	t.put(tToken, &c.Token)
	t.event("token-added", "token/"+c.Token.Name, "role %s", c.Token.Role)
	return nil
}

func revokeToken(t *tx, c RevokeToken) any {
	tok := t.Token(c.Hash)
	if tok == nil {
		return refuse("not-found", "no such token")
	}
	w := *tok
	w.Revoked = t.now
	t.put(tToken, &w)
	t.event("token-revoked", "token/"+w.Name, "role %s", w.Role)
	return nil
}

func raiseLevel(t *tx, c RaiseLevel) any {
	if c.Level <= t.meta.Level {
		return nil
	}
	t.meta.Level = c.Level
	t.event("level-raised", "cluster/"+t.meta.Cluster, "to %d", c.Level)
	return nil
}
