package gang

import (
	"slices"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// PerNode is how many ranks' bundles the fullest node of a gang holds: a spare node must be
// able to stand in for any of them.
func PerNode(g *state.Group) (most int, nodes map[string]int) {
	nodes = map[string]int{}
	for _, b := range g.RankBundles() {
		nodes[b.Node]++
		most = max(most, nodes[b.Node])
	}
	return most, nodes
}

// GoodSpares are the spare nodes of a group that can stand in for any of its nodes, with
// their bundles. unsure: one is silent, and is back or lost within seconds.
func (c Cluster) GoodSpares(g *state.Group) (good map[string][]state.Bundle, unsure bool) {
	most, ranks := PerNode(g)
	avoid := c.avoided(g.Job)
	good = map[string][]state.Bundle{}
	for _, b := range g.SpareBundles() {
		good[b.Node] = append(good[b.Node], b)
		n := c.View.Node(b.Node)
		unsure = unsure || n != nil && (n.State == api.NodeSuspect || n.State == api.NodeAgentless)
	}
	for node, list := range good {
		if n := c.View.Node(node); n == nil || !n.Schedulable() || len(list) < most || ranks[node] > 0 || avoid[node] != "" {
			delete(good, node)
		}
	}
	return good, unsure
}

// onSpares places the ranks of every node that a gang has lost on a spare node each, nil if
// the spare nodes do not do.
func (c Cluster) onSpares(g *state.Group) []api.Placed {
	if g.Spares == 0 {
		return nil
	}
	good, _ := c.GoodSpares(g)
	avoid := c.avoided(g.Job)
	out := make([]api.Placed, len(g.RankBundles()))
	standIn := map[string]string{}
	used := map[string]int{}
	free := slices.DeleteFunc(g.SpareNodes(), func(n string) bool { return good[n] == nil })
	moved := false
	for i, b := range g.RankBundles() {
		if c.Stands(b) && avoid[b.Node] == "" {
			out[i] = api.Placed{Bundle: int64(i), Node: b.Node, Devices: b.Devices}
			continue
		}
		spare, known := standIn[b.Node]
		if !known {
			if len(free) == 0 {
				return nil
			}
			spare, free = free[0], free[1:]
			standIn[b.Node] = spare
		}
		s := good[spare][used[spare]]
		used[spare]++
		out[i] = api.Placed{Bundle: int64(i), Node: spare, Devices: s.Devices}
		moved = true
	}
	if !moved {
		return nil
	}
	return out
}

// freeSpares takes what the spare bundles of a group hold out of a snapshot.
func (c Cluster) freeSpares(s *schedule.Snapshot, g *state.Group) {
	for _, b := range g.SpareBundles() {
		hold := c.View.Hold(b.Hold)
		i := slices.IndexFunc(s.Nodes, func(n *schedule.Node) bool { return n.ID == b.Node })
		if hold == nil || i < 0 {
			continue
		}
		n := s.Own(i)
		n.FreeCPU += hold.Need.CPU
		n.FreeMemory += hold.Need.Memory
		for k := range n.GPUs {
			gpu := &n.GPUs[k]
			switch {
			case !slices.Contains(b.Devices, gpu.UUID):
			case hold.Need.GPUs > 0:
				gpu.Free, gpu.Share = gpu.Usable, 1000
			default:
				gpu.Free, gpu.Share = min(gpu.Usable, gpu.Free+unit.Bytes(hold.Need.GPUMemory)), gpu.Share+hold.Need.Share
			}
		}
	}
}
