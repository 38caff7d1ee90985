package state

import "fmt"

// Notice says that a node is about to be taken away (a spot or preemptible machine). It
// drains the node beside what somebody may have asked for: one is taken back without the
// other.
type Notice struct {
	Number   uint64 `json:"number"`
	Reason   string `json:"reason"`
	Since    int64  `json:"since"`
	Deadline int64  `json:"deadline"` // ns; then the node may be gone
}

// NodeNotice is what a node's agent says of the node's own end.
type NodeNotice struct {
	ID   string `json:"id"`
	Boot string `json:"boot"` // that it was said in
	// Number grows with everything that the agent says of this, over its restarts: what
	// comes late or twice is known as old.
	Number    uint64 `json:"n"`
	Reason    string `json:"reason,omitempty"`
	Deadline  int64  `json:"deadline,omitempty"` // ns
	Withdrawn bool   `json:"withdrawn,omitempty"`
}

// Cordoned is what keeps new work off the node: what somebody asked for, a notice, or both
// in one; nil: nothing does. Of two deadlines the earlier holds.
func (n *Node) Cordoned() *NodeDrain {
	c, s := n.Cordon, n.Notice
	if s == nil {
		return c
	}
	out := NodeDrain{Drain: true, Reason: s.Reason, Since: s.Since, Deadline: s.Deadline}
	if c != nil {
		if c.Reason != "" {
			out.Reason += "; " + c.Reason
		}
		out.Since = min(out.Since, c.Since)
		if c.Drain && c.Deadline != 0 {
			out.Deadline = min(out.Deadline, c.Deadline)
		}
	}
	return &out
}

// Draining reports whether what runs on the node is to leave it.
func (n *Node) Draining() bool {
	c := n.Cordoned()
	return c != nil && c.Drain
}

// nodeNotice takes what an agent says of its node's end. A notice that stands is replaced
// by a newer one. A withdrawal undoes what the notice did and nothing else; after the
// deadline it comes too late, since what ran there was ended.
func nodeNotice(t *tx, c NodeNotice) any {
	n := t.Node(c.ID)
	switch {
	case n == nil:
		return refuse("not-found", "no node "+c.ID)
	case c.Number == 0 || !c.Withdrawn && c.Deadline <= 0:
		return refuse("invalid", "a notice has a number and a deadline")
	case n.Info.BootID != c.Boot:
		return refuse("stale", fmt.Sprintf("the notice is of boot %s of node %s, which runs another one", cutText(c.Boot, 64), c.ID))
	case c.Number <= n.Noticed:
		return nil // said again
	}
	w, before := *n, n.Cordoned()
	w.Noticed, w.Index = c.Number, t.index
	switch s := n.Notice; {
	case c.Withdrawn && s == nil:
	case c.Withdrawn && t.now >= s.Deadline:
		t.event("notice-late", "node/"+n.ID, "taken back after its deadline; the node stays drained: %s", s.Reason)
	case c.Withdrawn:
		w.Notice = nil
		t.event("notice-withdrawn", "node/"+n.ID, "%s; %s", s.Reason, t.afterNotice(w.Cordon))
	default:
		w.Notice = &Notice{Number: c.Number, Reason: cutText(c.Reason, MaxEventText), Since: t.now, Deadline: c.Deadline}
		if s != nil {
			w.Notice.Since = s.Since
		}
		t.event("node-draining", "node/"+n.ID, "%s", w.Notice.Reason)
	}
	t.put(tNode, &w)
	t.redate(n.ID, before, w.Cordoned())
	return nil
}

func (t *tx) afterNotice(c *NodeDrain) string {
	switch {
	case c == nil:
		return "it takes new work again"
	case c.Drain:
		return "it stays drained: " + orText(c.Reason, "no reason given")
	}
	return "it stays cordoned: " + orText(c.Reason, "no reason given")
}

// redate gives the jobs that leave a node the deadline that now holds there. The ones that
// have an earlier one from elsewhere keep it.
func (t *tx) redate(node string, before, after *NodeDrain) {
	if before == nil || before.Deadline == 0 {
		return // none has a deadline from here
	}
	deadline := int64(0)
	if after != nil && after.Drain {
		deadline = after.Deadline
	}
	if deadline == before.Deadline {
		return
	}
	for _, j := range t.LiveJobs() {
		d := j.Drain
		if d == nil || d.Kind != DrainMove || d.Node != node || d.Deadline != before.Deadline {
			continue
		}
		w, nd := *j, *d
		nd.Deadline = deadline
		w.Drain, w.Index = &nd, t.index
		t.put(tJob, &w)
	}
}

// rebooted forgets the notice of a node that was taken away and is back.
func (n *Node) rebooted() string {
	n.Noticed = 0 // the new boot's agent may know of no number
	if n.Notice == nil {
		return ""
	}
	n.Notice = nil
	if n.Cordoned() != nil {
		return "; its notice is void"
	}
	return "; its notice is void, and it takes new work again"
}

// Tighter reports whether what drains the node ends a job that is being drained for
// another reason sooner than that does.
func (d *Drain) Tighter(c *NodeDrain) bool {
	return d != nil && d.Kind != DrainResize && c.Deadline != 0 && (d.Deadline == 0 || c.Deadline < d.Deadline)
}
