package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

const gib = 1 << 30

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// nodeBuilder makes nodes: aNode("n1").cpu(8).gpus(2, 72).node.
type nodeBuilder struct{ node Node }

func aNode(name string) nodeBuilder {
	return nodeBuilder{Node{
		ID: "id-" + name, Name: name, Ready: true,
		CPU: 32_000, Memory: 128 * gib, FreeCPU: 32_000, FreeMemory: 128 * gib,
	}}
}

func (b nodeBuilder) cpu(n unit.MilliCPU) nodeBuilder {
	b.node.CPU, b.node.FreeCPU = n, n
	return b
}

func (b nodeBuilder) memory(gibs unit.Bytes) nodeBuilder {
	b.node.Memory, b.node.FreeMemory = gibs*gib, gibs*gib
	return b
}

func (b nodeBuilder) gpus(n int, usableGiB unit.Bytes) nodeBuilder {
	b.node.GPUs = nil
	for i := range n {
		b.node.GPUs = append(b.node.GPUs, GPU{
			UUID: fmt.Sprintf("GPU-%s-%d", b.node.Name, i), Model: "test",
			Usable: usableGiB * gib, Free: usableGiB * gib, Share: 1000, Healthy: true,
		})
	}
	return b
}

func (b nodeBuilder) pool(p string) nodeBuilder { b.node.Pool = p; return b }

func (b nodeBuilder) label(k, v string) nodeBuilder {
	b.node.Labels = maps.Clone(b.node.Labels)
	if b.node.Labels == nil {
		b.node.Labels = map[string]string{}
	}
	b.node.Labels[k] = v
	return b
}

func (b nodeBuilder) notReady(why string) nodeBuilder {
	b.node.Ready, b.node.Why = false, why
	return b
}

// taken marks devices as held whole.
func (b nodeBuilder) taken(devices ...int) nodeBuilder {
	b.node.GPUs = slices.Clone(b.node.GPUs)
	for _, d := range devices {
		b.node.GPUs[d].Free, b.node.GPUs[d].Share = 0, 0
	}
	return b
}

// leaving marks a device as shared, with so many thousandths left.
func (b nodeBuilder) leaving(device int, thousandths int64) nodeBuilder {
	g := &b.node.GPUs[device]
	held := (&gpuState{usable: int64(g.Usable)}).shareBytes(&class{share: 1000 - thousandths})
	g.Share, g.Free = thousandths, g.Usable-unit.Bytes(held)
	return b
}

func (b nodeBuilder) sick(device int, why ...string) nodeBuilder {
	b.node.GPUs[device].Why = strings.Join(why, "")
	b.node.GPUs[device].Healthy = false
	return b
}

// requestBuilder makes requests: gang("a", 4, oneGPU).strategy(api.StrictPack).request.
type requestBuilder struct{ request Request }

var lastSeq uint64

func gang(id string, n int, b api.Bundle) requestBuilder {
	lastSeq++
	r := Request{ID: id, Name: id, Seq: lastSeq}
	for range n {
		r.Spec.Bundles = append(r.Spec.Bundles, b)
	}
	return requestBuilder{r}
}

func (b requestBuilder) and(bundles ...api.Bundle) requestBuilder {
	b.request.Spec.Bundles = append(b.request.Spec.Bundles, bundles...)
	return b
}

func (b requestBuilder) strategy(s api.Strategy) requestBuilder {
	b.request.Spec.Strategy = s
	return b
}

func (b requestBuilder) perNode(n int64) requestBuilder { b.request.Spec.PerNode = n; return b }

func (b requestBuilder) priority(p int64) requestBuilder { b.request.Spec.Priority = p; return b }
func (b requestBuilder) pool(p string) requestBuilder    { b.request.Spec.Pool = p; return b }
func (b requestBuilder) keep(ids ...string) requestBuilder {
	b.request.Keep = ids
	return b
}

func gpus(n int64) api.Bundle         { return api.Bundle{Resources: api.Resources{GPUs: n}} }
func cpus(n unit.MilliCPU) api.Bundle { return api.Bundle{Resources: api.Resources{CPU: n * 1000}} }
func share(thousandths int64) api.Bundle {
	return api.Bundle{Resources: api.Resources{Share: thousandths}}
}

func labelled(b api.Bundle, k, v string) api.Bundle {
	b.Labels = map[string]string{k: v}
	return b
}

func shareOf(thousandths int64, gibs unit.Bytes) api.Bundle {
	return api.Bundle{Resources: api.Resources{Share: thousandths, GPUMemory: gibs * gib}}
}

// cluster puts nodes and requests together.
func cluster(nodes ...nodeBuilder) *Snapshot {
	s := &Snapshot{}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, &n.node)
	}
	return s
}

func (s *Snapshot) pending(rs ...requestBuilder) *Snapshot {
	for _, r := range rs {
		s.Pending = append(s.Pending, &r.request)
	}
	return s
}

func (s *Snapshot) heldBy(hs ...Holder) *Snapshot {
	for _, h := range hs {
		s.Holders = append(s.Holders, &h)
	}
	return s
}

// holder names a placed group that holds whole devices of one node.
func holder(name string, n Node, devices ...int) Holder {
	h := Holder{Group: "pg-" + name, Name: name, Nodes: []string{n.ID}, GPUs: int64(len(devices))}
	held := Held{Node: n.ID}
	for _, d := range devices {
		held.Devices = append(held.Devices, n.GPUs[d].UUID)
	}
	h.Bundles = []Held{held}
	return h
}

func decisionFor(ds []Decision, group string) Decision {
	for _, d := range ds {
		if d.Group == group {
			return d
		}
	}
	return Decision{}
}
