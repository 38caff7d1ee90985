package schedule

import (
	"fmt"
	"math"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// amount is a quantity of everything that the scheduler counts. gpus are whole
// devices, share thousandths of devices.
type amount struct {
	gpus, share, cpu, mem int64
}

// satAdd and satMul stop at the largest integer instead of wrapping around: a sum of
// hostile requests stays "too much". Both want non-negative numbers.
func satAdd(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func satMul(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

func (a amount) plus(b amount) amount {
	return amount{satAdd(a.gpus, b.gpus), satAdd(a.share, b.share), satAdd(a.cpu, b.cpu), satAdd(a.mem, b.mem)}
}

func (a amount) times(n int64) amount {
	return amount{satMul(a.gpus, n), satMul(a.share, n), satMul(a.cpu, n), satMul(a.mem, n)}
}

// beyond is what a has more than b, at least nothing of each.
func (a amount) beyond(b amount) amount {
	return amount{max(0, a.gpus-b.gpus), max(0, a.share-b.share), max(0, a.cpu-b.cpu), max(0, a.mem-b.mem)}
}

// only keeps the dimensions in which mask has something.
func (a amount) only(mask amount) amount {
	keep := func(v, m int64) int64 {
		if m == 0 {
			return 0
		}
		return v
	}
	return amount{keep(a.gpus, mask.gpus), keep(a.share, mask.share), keep(a.cpu, mask.cpu), keep(a.mem, mask.mem)}
}

// without leaves out the dimensions in which mask has something.
func (a amount) without(mask amount) amount {
	leave := func(v, m int64) int64 {
		if m != 0 {
			return 0
		}
		return v
	}
	return amount{leave(a.gpus, mask.gpus), leave(a.share, mask.share), leave(a.cpu, mask.cpu), leave(a.mem, mask.mem)}
}

func (a amount) isZero() bool { return a == amount{} }

// text prints the amount in the dimensions of mask, GPUs first: "2 GPUs, 8 CPU".
func (a amount) text(mask amount) string {
	var parts []string
	if mask.gpus > 0 {
		parts = append(parts, plural(a.gpus, "GPU"))
	}
	if mask.share > 0 {
		parts = append(parts, fmt.Sprintf("%d/1000 of a GPU", a.share))
	}
	if mask.cpu > 0 {
		parts = append(parts, unit.MilliCPU(a.cpu).String()+" CPU")
	}
	if mask.mem > 0 {
		parts = append(parts, unit.Bytes(a.mem).String()+" memory")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (c *class) amount() amount { return amount{c.gpus, c.share, c.cpu, c.mem} }

// text names the resources of one bundle.
func (c *class) text() string {
	s := c.amount().text(c.amount())
	if c.gpuMem > 0 && c.gpus > 0 {
		s += fmt.Sprintf(" (each with %s usable)", unit.Bytes(c.gpuMem))
	} else if c.gpuMem > 0 {
		s += fmt.Sprintf(" (%s of its memory)", unit.Bytes(c.gpuMem))
	}
	return s
}

// sum is what all bundles ask for together.
func (d *demand) sum() amount {
	if d.summed != nil {
		return *d.summed
	}
	var sum amount
	for _, c := range d.classes {
		sum = sum.plus(c.amount().times(int64(len(c.bundles))))
	}
	return sum
}

// left is what a node has free for bundles of the class: whole devices that suit it.
func (n *nodeState) left(c *class) amount {
	a := amount{cpu: n.cpu, mem: n.mem}
	for d := range n.gpus {
		g := &n.gpus[d]
		if g.untouched() && (c == nil || c.gpus == 0 || g.suits(c)) {
			a.gpus++
		}
		if g.healthy {
			a.share += g.share
		}
	}
	return a
}

// leftOnOneDevice is left with the share of the best single device: what one share
// can get.
func (n *nodeState) leftOnOneDevice(c *class) amount {
	a := n.left(c)
	a.share = 0
	for d := range n.gpus {
		if n.gpus[d].healthy {
			a.share = max(a.share, n.gpus[d].share)
		}
	}
	return a
}
