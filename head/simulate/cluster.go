package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Limits of a cluster file.
const (
	MaxNodes       = 200_000
	MaxGPUsPerNode = 64
	// longestPause bounds the times in which a job does nothing but start or save.
	longestPause = year
)

// Cluster is what a trace runs on.
type Cluster struct {
	Nodes        []NodeGroup       `json:"nodes"`
	Levels       []api.Level       `json:"levels,omitempty"`
	Queues       []api.Queue       `json:"queues,omitempty"`
	Reservations []api.Reservation `json:"reservations,omitempty"`
	Capacities   []api.Capacity    `json:"capacities,omitempty"`
	Policy       Policy            `json:"policy,omitzero"`
	// Jobs is what rows of a trace do not say.
	Jobs        Defaults     `json:"jobs,omitzero"`
	Failures    Failures     `json:"failures,omitzero"`
	Checkpoints *Checkpoints `json:"checkpoints,omitempty"` // nil: a failed job begins again
	// Start is how long ranks take until their first step, at each start.
	Start unit.Duration `json:"start,omitempty"`
}

// NodeGroup is a number of equal nodes.
type NodeGroup struct {
	Count int64 `json:"count"`
	// Name has one % that becomes the node's number; without one it is put behind.
	Name      string            `json:"name,omitempty"`
	GPUs      int64             `json:"gpus,omitempty"`
	Model     string            `json:"model,omitempty"`
	GPUMemory unit.Bytes        `json:"gpuMemory,omitempty"` // usable, of each
	CPU       unit.MilliCPU     `json:"cpu,omitempty"`
	Memory    unit.Bytes        `json:"memory,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Pool      string            `json:"pool,omitempty"`
	// Every says how many nodes, one after the other, share a domain: {"rack": 16} gives
	// sixteen nodes the label rack=rack-0, the next sixteen rack=rack-1, and so on.
	Every map[string]int64 `json:"every,omitempty"`
}

// Policy is what an operator may set of the scheduler, and how far it plans here.
type Policy struct {
	api.SchedulerPolicy
	Planned int64 `json:"planned,omitempty"`
	// PlanAge is how old planned starts may become before earlier ones are looked for; 0:
	// they are with every event.
	PlanAge unit.Duration `json:"planAge,omitempty"`
}

// Checkpoints say how jobs save: every Interval of work, for which all ranks stand still
// for Save.
type Checkpoints struct {
	Interval unit.Duration `json:"interval"`
	Save     unit.Duration `json:"save"`
}

// Failures are what breaks and how long it stays broken; zero: never.
type Failures struct {
	Node Lifetime `json:"node,omitzero"` // a whole machine
	GPU  Lifetime `json:"gpu,omitzero"`  // one device
	// Rank is a program that fails by its own doing, for each rank.
	Rank Lifetime `json:"rank,omitzero"`
}

// Lifetime is a Weibull distribution by its mean and shape, and the time of repair, which
// is exponential. Shape 1, the default, is exponential: failures without a memory.
type Lifetime struct {
	MTBF   unit.Duration `json:"mtbf,omitempty"`
	Shape  float64       `json:"shape,omitempty"`
	Repair unit.Duration `json:"repair,omitempty"` // mean
}

// ParseCluster reads a cluster from JSON and checks it; name is the file's.
func ParseCluster(name string, data []byte) (*Cluster, error) {
	c := &Cluster{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document; describe one cluster", name)
	}
	if errs := c.check(); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %s", name, strings.Join(errs, "; "))
	}
	return c, nil
}

// check says everything that is wrong with a cluster.
func (c *Cluster) check() []string {
	var errs []string
	bad := func(format string, args ...any) { errs = append(errs, fmt.Sprintf(format, args...)) }
	var all int64
	for i := range c.Nodes {
		n := &c.Nodes[i]
		at := fmt.Sprintf("nodes[%d]", i)
		if n.Count < 1 || n.Count > MaxNodes {
			bad("%s.count is %d: 1 to %d", at, n.Count, MaxNodes)
			continue
		}
		all += n.Count
		if n.GPUs < 0 || n.GPUs > MaxGPUsPerNode {
			bad("%s.gpus is %d: 0 to %d", at, n.GPUs, MaxGPUsPerNode)
		}
		if n.CPU < 0 || n.CPU > schedule.MaxCPU || n.Memory < 0 || n.Memory > schedule.MaxMemory || n.GPUMemory < 0 || n.GPUMemory > schedule.MaxMemory {
			bad("%s has cpu, memory or gpuMemory below zero or beyond what a machine has", at)
		}
		if strings.Count(n.Name, "%") > 1 {
			bad("%s.name %.80q has more than one %%, the place of the node's number", at, n.Name)
		}
		for label, each := range n.Every {
			if each < 1 || label == "" {
				bad("%s.every.%s is %d: at least one node in each domain", at, label, each)
			}
			if n.Labels[label] != "" {
				bad("%s.every.%s contradicts labels.%s", at, label, label)
			}
		}
	}
	switch {
	case len(c.Nodes) == 0:
		bad("nodes is empty: name at least one group, as [{count: 4, gpus: 8}]")
	case all > MaxNodes:
		bad("%d nodes are more than %d", all, MaxNodes)
	}
	seen := map[string]bool{}
	for i, l := range c.Levels {
		if l.Name == "" || l.Label == "" || seen[l.Name] {
			bad("levels[%d] needs a name of its own and the label that names its domains", i)
		}
		seen[l.Name] = true
		if !slices.ContainsFunc(c.Nodes, func(n NodeGroup) bool { return n.Labels[l.Label] != "" || n.Every[l.Label] > 0 }) {
			bad("levels[%d]: no node has the label %q", i, l.Label)
		}
	}
	for _, f := range []struct {
		name string
		l    Lifetime
	}{{"node", c.Failures.Node}, {"gpu", c.Failures.GPU}, {"rank", c.Failures.Rank}} {
		if f.l.MTBF > 0 && f.l.MTBF.D() < aStep {
			bad("failures.%s.mtbf is %s: at least %s, which is a step", f.name, f.l.MTBF, aStep)
		}
		if f.l.MTBF < 0 || f.l.Repair < 0 || f.l.Shape < 0 || f.l.Shape > 20 || f.l.Shape > 0 && f.l.Shape < 0.1 {
			bad("failures.%s: mtbf and repair are not negative, and shape is 0.1 to 20 (0: 1)", f.name)
		}
		if f.l.MTBF == 0 && (f.l.Repair != 0 || f.l.Shape != 0) {
			bad("failures.%s has no mtbf: without one nothing fails; leave repair and shape out as well", f.name)
		}
	}
	if k := c.Checkpoints; k != nil && (k.Interval.D() < aStep || k.Interval.D() > longest || k.Save < 0 || k.Save.D() > longestPause) {
		bad("checkpoints: interval is at least %s, which is a step, and at most 100 years; save is not negative, and at most a year", aStep)
	}
	if j := &c.Jobs; j.CPU < 0 || j.CPU > schedule.MaxCPU || j.Memory < 0 || j.Memory > schedule.MaxMemory || j.AboveGPUs < 0 {
		bad("jobs has cpu, memory or aboveGPUs below zero or beyond what a machine has")
	}
	if l := c.Jobs.Level; l != "" && !seen[l] {
		bad("jobs.level %.80q is none of the levels that the file declares", l)
	}
	if n := c.Jobs.Doublings; n < 0 || n > mostDoublings {
		bad("jobs.doublings is %d: 0 to %d", n, mostDoublings)
	}
	if c.Start < 0 || c.Start.D() > longestPause {
		bad("start is %s: not negative, and at most a year", c.Start)
	}
	if c.Policy.PlanAge < 0 || c.Policy.PlanAge.D() > longestPause {
		bad("policy.planAge is %s: not negative, and at most a year", c.Policy.PlanAge)
	}
	for _, e := range schedule.ValidatePolicy(&c.Policy.SchedulerPolicy) {
		bad("policy.%s is %s", strings.TrimPrefix(e.Pointer, "/"), e.Detail)
	}
	if c.Policy.Planned < 0 {
		bad("policy.planned is negative")
	}
	slices.Sort(errs)
	return errs
}

// node is one machine of the cluster.
type node struct {
	id, name string
	group    *NodeGroup
	labels   map[string]string
}

// machines lists the nodes in order, each with its labels.
func (c *Cluster) machines() []node {
	var out []node
	for i := range c.Nodes {
		g := &c.Nodes[i]
		pattern := g.Name
		if pattern == "" {
			pattern = fmt.Sprintf("n%d-%%", i)
		}
		if !strings.Contains(pattern, "%") {
			if g.Count > 1 {
				pattern += "-%"
			}
		}
		for k := range g.Count {
			labels := map[string]string{}
			maps.Copy(labels, g.Labels)
			for key, each := range g.Every {
				labels[key] = fmt.Sprintf("%s-%d", key, k/each)
			}
			if g.Pool != "" {
				labels["pool"] = g.Pool
			}
			if g.Model != "" {
				labels["gpu-model"] = g.Model
			}
			name := strings.Replace(pattern, "%", fmt.Sprintf("%05d", k), 1)
			out = append(out, node{id: name, name: name, group: g, labels: labels})
		}
	}
	return out
}

// GPUs is how many devices the cluster has.
func (c *Cluster) GPUs() int64 {
	var n int64
	for i := range c.Nodes {
		n += c.Nodes[i].Count * c.Nodes[i].GPUs
	}
	return n
}
