package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/troupe-runtime/troupe/head/packages"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// livePackages are those that jobs name which have not ended.
func (h *Head) livePackages() map[string]bool {
	live := map[string]bool{}
	for _, j := range h.Store.View().Jobs() {
		if j.Spec.Package != "" && !j.State.Terminal() {
			live[j.Spec.Package] = true
		}
	}
	return live
}

// Package says whether this head has a package.
func (h *Head) Package(ctx context.Context, hash string) (api.Package, error) {
	if err := h.leader(); err != nil {
		return api.Package{}, err
	}
	if h.Packages == nil {
		return api.Package{}, noPackages()
	}
	size, err := h.Packages.Has(ctx, hash)
	if err != nil {
		return api.Package{}, h.packageProblem(err)
	}
	return api.Package{Hash: hash, Size: size}, nil
}

// PutPackage keeps a package; it is durable on this head when it returns.
func (h *Head) PutPackage(ctx context.Context, hash string, size int64, body io.Reader) (api.Package, error) {
	if err := h.leader(); err != nil {
		return api.Package{}, err
	}
	if h.Packages == nil {
		return api.Package{}, noPackages()
	}
	if err := h.Packages.Put(ctx, hash, size, body, h.livePackages); err != nil {
		return api.Package{}, h.packageProblem(err)
	}
	return api.Package{Hash: hash, Size: size}, nil
}

// pinPackage keeps the package of a job that is being submitted: until its entry is
// applied no live job names it.
func (h *Head) pinPackage(ctx context.Context, hash string) (release func(), err error) {
	if hash == "" {
		return func() {}, nil
	}
	if h.Packages == nil {
		return nil, noPackages()
	}
	release, err = h.Packages.Pin(hash)
	if err == nil {
		if _, err = h.Packages.Has(ctx, hash); err == nil {
			return release, nil
		}
		release()
	}
	return nil, h.packageProblem(err)
}

func noPackages() *api.Problem {
	return problem(422, "TRP-P501", api.ExitNever, "no packages", "this head keeps no packages")
}

func (h *Head) packageProblem(err error) error {
	p := problem(0, "", 0, "", "%v", err)
	switch {
	case errors.Is(err, packages.ErrNone):
		p.Status, p.Code, p.Exit, p.Title = 404, "TRP-P404", api.ExitNotFound, "no such package"
		p.Help = "send the folder first: troupe run --working-dir DIR does, and so does PUT /api/v1/packages/HASH"
	case errors.Is(err, packages.ErrHash):
		p.Status, p.Code, p.Exit, p.Title = 422, "TRP-P422", api.ExitBadInput, "not that package"
		p.Help = "it was changed or cut on its way, or while it was read; send it again"
	case errors.Is(err, packages.ErrTooLarge):
		p.Status, p.Code, p.Exit, p.Title = 413, "TRP-P413", api.ExitBadInput, "package too large"
		p.Help = "leave large files out with a .troupeignore, and put them where all nodes see them"
	case errors.Is(err, packages.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		p.Status, p.Code, p.Exit, p.Title = 507, "TRP-P507", api.ExitOS, "no room for the package"
		p.Help = "wait for jobs to end that were submitted with a folder, or put the data where all nodes see it"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrDeadlineExceeded):
		p.Status, p.Code, p.Exit, p.Title = 400, "TRP-P400", api.ExitUnreachable, "the package did not arrive"
		p.Help = "the connection broke off or was too slow; send it again"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		p.Status, p.Code, p.Exit, p.Title = 503, "TRP-H503", api.ExitUnreachable, "the head cannot keep packages now"
	}
	return p
}

// onPackage hands a node a piece of a package of a job that is placed on it.
func (h *Head) onPackage(_ context.Context, node string, data []byte) (any, error) {
	var ask wire.PackageRequest
	if err := wire.Unmarshal(data, &ask); err != nil {
		return nil, err
	}
	if h.Packages == nil || !placedOn(h.Store.View(), node, ask.Hash) {
		return wire.PackagePiece{Error: fmt.Sprintf("no job on this node has the package %.64s", ask.Hash)}, nil
	}
	piece, size, err := h.Packages.Read(ask.Hash, ask.Offset, wire.MaxPiece)
	if err != nil {
		h.Logger.Warn("a package could not be handed to a node", "node", node, "package", cut(ask.Hash, 64), "err", err)
		return wire.PackagePiece{Error: cut(err.Error(), 400)}, nil
	}
	return wire.PackagePiece{Size: size, Data: piece}, nil
}

// placedOn reports whether a job that has not ended has the package and a bundle on the
// node (P10).
func placedOn(v *state.View, node, hash string) bool {
	for _, j := range v.Jobs() {
		if hash == "" || j.Spec.Package != hash || j.State.Terminal() {
			continue
		}
		if g := v.Group(j.Group); g != nil && slices.ContainsFunc(g.Placed, func(b state.Bundle) bool { return b.Node == node }) {
			return true
		}
	}
	return false
}

// fetching says on which nodes a job's package is still on its way, before its first
// attempt or in the present one.
func (h *Head) fetching(v *state.View, j *state.Job) map[string]wire.Fetch {
	if j.Spec.Package == "" {
		return nil
	}
	out := h.starts.fetching(j.ID)
	if last := j.Last(); last != nil && last.Ended == 0 {
		for _, id := range last.Allocs {
			a := v.Alloc(id)
			if a == nil {
				continue
			}
			if f := h.nodes.status(a.Node, id).Fetch; f != nil {
				if out == nil {
					out = map[string]wire.Fetch{}
				}
				out[a.Node] = *f
			}
		}
	}
	return out
}

// fetchText is a sentence for people about what fetching says; empty when nothing is.
func fetchText(v *state.View, f map[string]wire.Fetch) string {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(f)) {
		part := nodeName(v, node)
		if x := f[node]; x.Size > 0 {
			part += fmt.Sprintf(" (%d of %d KiB)", x.Done>>10, (x.Size+1023)>>10)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return ""
	}
	return " The package is still being fetched by " + strings.Join(parts, ", ") + "."
}
