package schedule

import (
	"cmp"
	"slices"
)

// gpuState is what of a device is free, small enough to be copied with its node.
type gpuState struct {
	*device
	usable  int64
	free    int64
	share   int64 // thousandths left
	healthy bool
}

// device is what of a device is the same whoever holds it.
type device struct {
	uuid, model string
	why         string // it is not healthy
}

// same reports whether two states of devices differ in nothing.
func (g *gpuState) same(h *gpuState) bool {
	return g.usable == h.usable && g.free == h.free && g.share == h.share && g.healthy == h.healthy &&
		(g.device == h.device || *g.device == *h.device)
}

// untouched reports whether the whole device may go to one bundle: nobody holds any
// of it (P2).
func (g *gpuState) untouched() bool {
	return g.healthy && g.share == wholeShare && g.free == g.usable
}

// suits reports whether a bundle of the class may have the whole device, were it free.
func (g *gpuState) suits(c *class) bool { return g.usable >= c.gpuMem && !c.bars(g) }

// bars: a quota does not allow the class devices of that model.
func (c *class) bars(g *gpuState) bool {
	return len(c.barred) > 0 && slices.Contains(c.barred, g.model)
}

// shareBytes is the memory that a share of this device takes.
func (g *gpuState) shareBytes(c *class) int64 {
	if c.gpuMem > 0 {
		return c.gpuMem
	}
	// usable × share ÷ 1000 without the product overflowing.
	return g.usable/wholeShare*c.share + g.usable%wholeShare*c.share/wholeShare
}

// shares is how many shares of the class the device has room for.
func (g *gpuState) shares(c *class, limit int64) int64 {
	if !g.healthy || c.bars(g) {
		return 0
	}
	n := min(limit, g.share/c.share)
	if b := g.shareBytes(c); b > 0 {
		n = min(n, g.free/b)
	}
	return n
}

func (g *gpuState) takeShare(c *class) {
	g.free -= g.shareBytes(c)
	g.share -= c.share
}

// fuller orders devices for shares: the one with least left first, which keeps whole
// devices whole.
func fuller(a, b *gpuState) bool {
	return cmp.Or(cmp.Compare(a.share, b.share), cmp.Compare(a.free, b.free)) < 0
}
