package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) nodeCommand() *cobra.Command {
	c := &cobra.Command{Use: "node", Aliases: []string{"nodes"}, Short: "Nodes: list, get, drain, cordon", Example: "  troupe node list\n  troupe node drain gpu-3 --deadline 10m --reason \"new fan\"\n  troupe node undrain gpu-3"}
	c.AddCommand(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: cobra.NoArgs,
		Example: "  troupe node list\n  troupe node list -o wide",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Nodes(c.Context(), a.limit)
			if err != nil {
				return err
			}
			show(a, l, func(n api.Node) string { return n.Name }, a.nodeTable)
			return nil
		},
	})
	c.AddCommand(a.nodeGet(), a.nodeDrain(), a.nodeCordon(), a.nodeUncordon())
	return c
}

func (a *app) nodeTable(ns []api.Node) table {
	t := table{head: []string{"NODE", "STATE", "CPU", "MEMORY", "GPUS", "GROUPS", "HEARTBEAT", "VERSION"}, right: map[int]bool{2: true, 3: true, 4: true, 5: true}}
	if a.format == "wide" {
		t.head = append(t.head, "ID", "ADDRESS", "REGISTERED", "LABELS", "GPU-HEALTH")
	}
	for _, n := range ns {
		row := []string{
			n.Name, nodeState(n), n.Allocated.CPU.String() + "/" + n.Capacity.CPU.String(),
			bytesText(int64(n.Allocated.Memory)) + "/" + bytesText(int64(n.Capacity.Memory)),
			fmt.Sprintf("%d/%d", n.Allocated.GPUs, n.Capacity.GPUs), fmt.Sprint(len(n.Groups)), a.when(n.LastHeartbeat), n.Version,
		}
		if a.format == "wide" {
			row = append(row, n.ID, n.Address, a.when(n.Registered), labelsText(n.Labels), gpuHealth(n.GPUs))
		}
		t.add(row...)
	}
	return t
}

// gpuHealth names the devices that are not well, and why.
func gpuHealth(gs []api.GPU) string {
	var out []string
	for _, g := range gs {
		if g.Health == "" || g.Health == "ok" {
			continue
		}
		text := fmt.Sprintf("%d %s", g.Index, g.Health)
		if g.Note != "" {
			text += ": " + g.Note
		}
		out = append(out, text)
	}
	if len(out) == 0 && len(gs) > 0 {
		return "ok"
	}
	return strings.Join(out, "; ")
}

// nodeNames turns ids of nodes, which the API speaks, into names, which people do.
// A name that two nodes share stays an id.
type nodeNames struct{ known func() map[string]string }

var nodeID = regexp.MustCompile(`\bn[0-9a-f]{10}\b`)

// names asks for the nodes once, when the first id is met; without an answer ids stay ids.
func (a *app) names(ctx context.Context) *nodeNames {
	return &nodeNames{known: sync.OnceValue(func() map[string]string {
		if a.nodes == nil {
			a.nodes = a.askNames(ctx)
		}
		return a.nodes
	})}
}

// askNames are the nodes' names by id; nil without an answer.
func (a *app) askNames(ctx context.Context) map[string]string {
	if !a.people() {
		return nil
	}
	cl, err := a.api()
	if err != nil {
		return nil
	}
	l, err := cl.Nodes(ctx, 0)
	if err != nil {
		return nil
	}
	byID, seen := map[string]string{}, map[string]int{}
	for _, x := range l.Items {
		seen[x.Name]++
	}
	for _, x := range l.Items {
		if x.Name != "" && seen[x.Name] == 1 {
			byID[x.ID] = x.Name
		}
	}
	return byID
}

func (n *nodeNames) of(id string) string {
	if name, ok := n.known()[id]; ok {
		return name
	}
	return id
}

// in replaces the ids within a text.
func (n *nodeNames) in(text string) string { return nodeID.ReplaceAllStringFunc(text, n.of) }
