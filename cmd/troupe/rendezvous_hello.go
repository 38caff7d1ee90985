package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/join"
)

// hello is what a host says of itself to the owner of the endpoint.
type hello struct {
	ID          string   `json:"id"` // --rdzv-id
	Name        string   `json:"name"`
	Command     []string `json:"command"`
	Ranks       int64    `json:"ranks"`
	MaxRestarts int64    `json:"maxRestarts"`
	MinNodes    int64    `json:"minNodes"`
	MaxNodes    int64    `json:"maxNodes"`
	Role        string   `json:"role"`
	NodeRank    *int64   `json:"nodeRank,omitempty"`
}

// welcome is the answer.
type welcome struct {
	Name  string `json:"name"`  // of the node: the host's, made unique
	Key   string `json:"key"`   // under which environments are handed to agents
	Token string `json:"token"` // to follow the run with
	// Hosts that are there, this one included.
	Hosts int64 `json:"hosts"`
}

func (r *hostRun) hello(name string) hello {
	h := hello{
		ID: r.meet.ID, Name: name, Command: r.words, Ranks: r.ranks, MaxRestarts: r.set.MaxRestarts,
		MinNodes: r.meet.MinNodes, MaxNodes: r.meet.MaxNodes, Role: r.set.Role,
	}
	if r.meet.NodeRankGiven {
		h.NodeRank = &r.meet.NodeRank
	}
	return h
}

// differs says in which option another host's command is not this one's; "" in none.
// How many ranks a host runs, and by which interpreter, is its own affair.
func (h *hello) differs(other *hello) string {
	for _, x := range []struct {
		name        string
		here, there any
	}{
		{"--rdzv-id", h.ID, other.ID},
		{"--nnodes", fmt.Sprintf("%d:%d", h.MinNodes, h.MaxNodes), fmt.Sprintf("%d:%d", other.MinNodes, other.MaxNodes)},
		{"--max-restarts", h.MaxRestarts, other.MaxRestarts},
		{"--role", h.Role, other.Role},
		{"the script and its arguments", wordsOf(h.Command), wordsOf(other.Command)},
	} {
		if x.here != x.there {
			return fmt.Sprintf("%s: %v at the endpoint, %v on this host", x.name, x.here, x.there)
		}
	}
	return ""
}

// wordsOf is a command without its interpreter, and with the name of the script alone:
// the folders may differ between hosts.
func wordsOf(command []string) string {
	words := slices.Clone(command)
	if len(words) > 1 && strings.HasPrefix(filepath.Base(words[0]), "python") {
		words = words[1:]
	}
	for i, w := range words {
		if !strings.HasPrefix(w, "-") {
			words[i] = filepath.Base(w)
			break
		}
	}
	return strings.Join(words, " ")
}

// known are the hosts that were let in, by node.
type known struct {
	hello
	at time.Time
}

// admit decides about one host; there are the nodes that live. It returns the node's name.
func admit(own *hello, h *hello, node string, hosts map[string]known, live func(node string) bool) (string, error) {
	refuse := func(exit int, help, format string, args ...any) error {
		return &join.Refused{Code: "TRP-R001", Exit: exit, Help: help, Text: fmt.Sprintf(format, args...)}
	}
	if h.ID != own.ID {
		return "", refuse(api.ExitConflict, "use the same --rdzv-id on all hosts, or another endpoint for another run",
			"this endpoint serves --rdzv-id=%.80s, not %.80s", own.ID, h.ID)
	}
	if what := own.differs(h); what != "" {
		return "", refuse(api.ExitUsage, "start the same command on all hosts; --nproc-per-node may differ", "the commands differ in %s", what)
	}
	if h.Ranks < 1 || h.Ranks > 4096 {
		return "", refuse(api.ExitUsage, "", "%d ranks on one host", h.Ranks)
	}
	taken := map[string]bool{own.Name: true}
	if own.NodeRank != nil && h.NodeRank != nil && *own.NodeRank == *h.NodeRank {
		return "", refuse(api.ExitUsage, "give each host its own --node-rank", "--node-rank=%d is that of %s", *h.NodeRank, own.Name)
	}
	for other, k := range hosts {
		if other == node || !live(other) && time.Since(k.at) > 10*time.Second {
			continue
		}
		taken[k.Name] = true
		if k.NodeRank != nil && h.NodeRank != nil && *k.NodeRank == *h.NodeRank {
			return "", refuse(api.ExitUsage, "give each host its own --node-rank", "--node-rank=%d is that of %s", *h.NodeRank, k.Name)
		}
	}
	name := h.Name
	if name == "" || len(name) > 63 {
		name = "host"
	}
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%.58s-%d", h.Name, n)
	}
	return name, nil
}
