package control

import (
	"context"
	"errors"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// onNotice takes what an agent says of its own node's end: the node that the subject names
// and no other (P10). The deadline is counted from now, by this head's clock: the node's
// may be wrong.
func (h *Head) onNotice(ctx context.Context, node string, data []byte) (any, error) {
	var m wire.Notice
	if err := wire.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return wire.NoticeAck{Number: m.Number, Error: err.Error()}, nil //nolint:nilerr // told to the agent
	}
	if !h.nodes.speaks(node, m.Session) {
		return wire.NoticeAck{Number: m.Number, Unknown: true}, nil
	}
	n := h.Store.View().Node(node)
	if n == nil {
		return wire.NoticeAck{Number: m.Number, Unknown: true}, nil
	}
	name := n.Info.Name
	if name == "" {
		name = n.ID
	}
	cmd := state.NodeNotice{ID: node, Boot: m.Boot, Number: m.Number, Withdrawn: m.Withdrawn}
	if !m.Withdrawn {
		cmd.Reason, cmd.Deadline = "spot notice on "+name+": "+m.Cause, h.Clock.Now().Add(m.Left.D()).UnixNano()
	}
	if _, err := h.propose(ctx, state.KindNodeNotice, cmd); err != nil {
		if ref, ok := errors.AsType[*state.Refused](err); ok {
			return wire.NoticeAck{Number: m.Number, Error: ref.Error()}, nil
		}
		return nil, err // the agent says it again
	}
	h.Kick()
	ack := wire.NoticeAck{Number: m.Number}
	if n := h.Store.View().Node(node); m.Withdrawn && n != nil && n.Cordoned() != nil {
		ack.Stays = n.WhyNot()
	}
	return ack, nil
}

// speaks reports whether a session of a node's agent is the one that this leader knows.
func (s *sessions) speaks(node, session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[node]
	return n != nil && n.id == session
}
