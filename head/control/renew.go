package control

import (
	"context"
	"errors"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// onRenew signs the next certificate of a node. Who asks is known by the subject; the
// name in the certificate follows from the key, and a node cannot get one for another.
func (h *Head) onRenew(_ context.Context, node string, data []byte) (any, error) {
	var r wire.RenewRequest
	if err := wire.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if h.SignNode == nil {
		return nil, errors.New("nodes of this cluster have no certificates")
	}
	id, chain, err := h.SignNode(r.CSR)
	if err == nil && id != node {
		err = errors.New("the request is by the key of another node")
	}
	if err != nil {
		h.Logger.Warn("a certificate was not renewed", "node", node, "err", err)
		return wire.RenewReply{Error: err.Error()}, nil
	}
	h.Logger.Info("a certificate was renewed", "node", node)
	return wire.RenewReply{Chain: chain}, nil
}
