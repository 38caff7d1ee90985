package schedule

import "slices"

// arrangeSteps bounds the search for an arrangement of shares on the devices of one
// node. Real loads need a few dozen steps; a load made to be hard is then answered
// with "not found" instead of a long wait.
const arrangeSteps = 20_000

// arrange puts a load on one node and takes it there: shares first, each on the
// device that it fills best, whole devices from what stays untouched. ok says that it
// fits; exact that the answer is a proof either way. On !ok the node's state is
// undefined and the caller drops its copy.
func arrange(n *nodeState, ni int, d *demand, load loadSet) (spots []spot, ok, exact bool) {
	a := arrangement{n: n, steps: arrangeSteps}
	cpu, mem := n.cpu, n.mem
	for ci, k := range load {
		c := d.classes[ci]
		if k == 0 {
			continue
		}
		cpu -= satMul(c.cpu, int64(k))
		mem -= satMul(c.mem, int64(k))
		// Checked at each step, so that neither can wrap around.
		if cpu < 0 || mem < 0 || n.count(c, int64(k)) < int64(k) {
			return nil, false, true
		}
		for range k {
			if c.share > 0 {
				a.shares = append(a.shares, spot{node: ni, class: c})
			} else {
				a.whole = append(a.whole, spot{node: ni, class: c})
			}
		}
	}
	n.cpu, n.mem = cpu, mem
	slices.SortStableFunc(a.whole, func(x, y spot) int { return moreMemoryFirst(x.class, y.class) })
	if !a.place(0) {
		return nil, false, a.steps > 0
	}
	return append(a.shares, a.whole...), true, true
}

func moreMemoryFirst(x, y *class) int {
	switch {
	case x.gpuMem > y.gpuMem:
		return -1
	case x.gpuMem < y.gpuMem:
		return 1
	}
	return 0
}

type arrangement struct {
	n      *nodeState
	shares []spot
	whole  []spot
	steps  int
}

// place gives share i a device, with backtracking, and the whole devices at the end.
func (a *arrangement) place(i int) bool {
	if i == len(a.shares) {
		return a.placeWhole()
	}
	c := a.shares[i].class
	var order []int
	for d := range a.n.gpus {
		if a.n.gpus[d].shares(c, 1) < 1 {
			continue
		}
		alike := func(e int) bool { return a.n.gpus[e].like(&a.n.gpus[d]) }
		if slices.ContainsFunc(order, alike) {
			continue // the same search over again
		}
		order = append(order, d)
	}
	slices.SortStableFunc(order, func(x, y int) int {
		switch {
		case fuller(&a.n.gpus[x], &a.n.gpus[y]):
			return -1
		case fuller(&a.n.gpus[y], &a.n.gpus[x]):
			return 1
		}
		return 0
	})
	for _, d := range order {
		if a.steps <= 0 {
			return false
		}
		a.steps--
		before := a.n.gpus[d]
		a.n.gpus[d].takeShare(c)
		a.shares[i].devices = []int{d}
		if a.place(i + 1) {
			return true
		}
		a.n.gpus[d] = before
	}
	return false
}

// like reports whether two devices differ in nothing that a placement looks at.
func (g *gpuState) like(h *gpuState) bool {
	return g.usable == h.usable && g.free == h.free && g.share == h.share && g.healthy == h.healthy && g.model == h.model
}

// placeWhole hands out untouched devices, those that need most memory first: what
// suits them suits the others too, so taking any of them is never wrong.
func (a *arrangement) placeWhole() bool {
	taken := make([]bool, len(a.n.gpus))
	for i := range a.whole {
		c := a.whole[i].class
		var devices []int
		for d := range a.n.gpus {
			g := &a.n.gpus[d]
			if int64(len(devices)) < c.gpus && !taken[d] && g.untouched() && g.suits(c) {
				devices = append(devices, d)
			}
		}
		if int64(len(devices)) < c.gpus {
			return false
		}
		for _, d := range devices {
			taken[d] = true
		}
		a.whole[i].devices = devices
	}
	for d := range taken {
		if taken[d] {
			a.n.gpus[d].share, a.n.gpus[d].free = 0, 0
		}
	}
	return true
}
