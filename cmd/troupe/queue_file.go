package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

const queueFileHelp = "troupe queue --help"

// queueFile is a whole tree of tenants and queues.
type queueFile struct {
	Queues []queueEntry `json:"queues"`
}

// queueEntry is a tenant or queue with quantities as people write them: "gpu: 8" are eight
// devices, "memory: 2TiB" so many bytes.
type queueEntry struct {
	Guaranteed map[string]string `json:"guaranteed"`
	Limit      map[string]string `json:"limit"`
	Lend       map[string]string `json:"lend"`
	api.Queue
}

// decodeQueues reads a file of tenants and queues, YAML or JSON. Every complaint names
// file, line and column. Whether the tree is sound the head says, which knows the capacities.
func decodeQueues(path string, data []byte) (list []*api.Queue, err error) {
	defer func() {
		if x, ok := errors.AsType[*exitError](err); ok {
			x.help = queueFileHelp
		}
	}()
	doc, err := yamlDocument(path, data, "; it needs a list named queues, which may be [] to remove all")
	if err != nil {
		return nil, err
	}
	tree, err := plainTree(path, doc, reflect.TypeFor[queueFile](), 0)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return nil, malformed(queueFileHelp, "%s: %v", path, err)
	}
	var file queueFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, malformed(queueFileHelp, "%s: %v", path, err)
	}
	if file.Queues == nil {
		return nil, at(path, doc, "no list named queues; write queues: [] to remove all")
	}
	return queuesOf(path, doc, file.Queues)
}

// queuesOf reads the quantities of a list that stands under "queues" in a document.
func queuesOf(path string, doc *yaml.Node, entries []queueEntry) ([]*api.Queue, error) {
	var list []*api.Queue
	for i := range entries {
		e := &entries[i]
		q := e.Queue
		for _, part := range []struct {
			name string
			from map[string]string
			to   *api.Amounts
		}{{"guaranteed", e.Guaranteed, &q.Guaranteed}, {"limit", e.Limit, &q.Limit}, {"lend", e.Lend, &q.Lend}} {
			for of, text := range part.from {
				n, ok := quotaAmount(of, text)
				if !ok {
					place := nodeAt(doc, "queues", strconv.Itoa(i), part.name, of)
					return nil, at(path, place, "%.40q of %.40q: %s", text, of, quotaForm(of))
				}
				*part.to = append(*part.to, api.Amount{Of: of, N: n})
			}
			slices.SortFunc(*part.to, func(a, b api.Amount) int { return strings.Compare(a.Of, b.Of) })
		}
		list = append(list, &q)
	}
	return list, nil
}

// quotaAmount reads a quantity: devices and cores with parts, bytes with a unit, and whole
// numbers of a capacity.
func quotaAmount(of, text string) (int64, bool) {
	switch {
	case of == "cpu", of == "gpu", strings.HasPrefix(of, "gpu:"):
		n, err := unit.ParseMilliCPU(text) // thousandths, of devices as well
		return int64(n), err == nil
	case of == "memory":
		n, err := unit.ParseBytes(text)
		return int64(n), err == nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func quotaForm(of string) string {
	switch {
	case of == "cpu", of == "gpu", strings.HasPrefix(of, "gpu:"):
		return "a number belongs here, as 8 or 0.5"
	case of == "memory":
		return "bytes belong here, as 512GiB"
	}
	return "a whole number belongs here"
}

// nodeAt finds the place of a value by the names and numbers on the way to it; where
// there is none, the nearest above.
func nodeAt(n *yaml.Node, way ...string) *yaml.Node {
	for _, step := range way {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next = n.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
			}
		case yaml.ScalarNode, yaml.AliasNode, yaml.DocumentNode, yaml.StreamNode:
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}
