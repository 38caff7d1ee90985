package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// refusedWell: what is wrong with a file is told with its name and the malformed code, and
// in a bounded text.
func refusedWell(t *testing.T, err error) {
	t.Helper()
	var x *exitError
	if err != nil && (!errors.As(err, &x) || x.code != api.ExitBadInput || !strings.HasPrefix(x.text, "f.yaml") || x.help == "" || len(x.text) > 1<<14) {
		t.Fatalf("%v", err)
	}
}

// What people write wrong in a topology file is told with its place.
func TestTopologyFile(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"all of it", "levels: [{name: rack, label: rack}]\ncapacities: [{name: nfs, total: 10}]\nlinks: [{a: n, healthy: true}]\nhalfLife: 7d\nscheduler: {order: fifo}\n", ""},
		{"nothing", "", "f.yaml is empty"},
		{"nothing in it", "{}", "f.yaml declares nothing: give levels"},
		{"no entries", "capacities: []\nlinks: []\n", "f.yaml declares nothing"},
		{"a list", "- a", "f.yaml:1:1: a list, where a mapping belongs"},
		{"a wrong name", "level: []\n", `f.yaml:1:1: unknown field "level"; did you mean levels?`},
		{"a wrong name within", "levels:\n- {name: rack, lable: rack}\n", `f.yaml:2:16: unknown field "lable"`},
		{"a level that is none", "levels: [rack]\n", `f.yaml:1:10: "rack", where a mapping belongs`},
		{"words for a number", "capacities: [{name: nfs, total: much}]\n", `f.yaml:1:33: "much", where a whole number belongs`},
		{"too much", "capacities: [{name: nfs, total: 99999999999999999999}]\n", "f.yaml:1:33: "},
		{"a date", "links: [{a: n, checked: yesterday}]\n", `f.yaml:1:25: "yesterday", where a time like`},
		{"no unit", "halfLife: 7\n", "f.yaml:1:11: "},
		{"a link that is never fresh", "scheduler:\n  linkFresh: 0s\n", "f.yaml:2:14: linkFresh cannot be 0: leave it out for the default, 10m"},
		{"an alias", "levels: &a []\ncapacities: *a\n", "f.yaml:2:13: aliases are not taken"},
		{"two documents", "levels: []\n---\nlevels: []\n", "f.yaml:2:1: a second document"},
	} {
		_, err := decodeTopology("f.yaml", []byte(tc.in))
		refusedWell(t, err)
		if x, _ := errors.AsType[*exitError](err); (x == nil) != (tc.want == "") || x != nil && !strings.HasPrefix(x.text, tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// A topology file of any bytes is read or refused, never worse.
func FuzzTopologyFile(f *testing.F) {
	for _, s := range []string{
		"levels: [{name: rack, label: rack}]\ncapacities: [{name: nfs, total: 10, overhead: 1, unit: MiB/s, level: rack}]", "links: [{a: n, b: m, healthy: false, why: x, checked: 2030-01-01T00:00:00Z}]",
		"halfLife: 7d\nscheduler: {order: fair, protect: 1m, maxLost: 5}", "levels: [{name: a, label: a}, {name: a, label: a}]", "levels: [null]", "links: [{a: [x]}]", "halfLife: -1s",
		"scheduler: {maxLost: 1e309}", "capacities: [{total: 9223372036854775808}]", "levels:\n- &a {name: x}\n- *a", "<<: {levels: []}", "{", "\x00", "levels: !!set {a}", "? [a]\n: b", "--- \n...\n---\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := decodeTopology("f.yaml", data)
		refusedWell(t, err)
	})
}

// A cluster file of any bytes is read or refused, never worse.
func FuzzClusterFile(f *testing.F) {
	for _, s := range []string{
		"nodes: [{count: 2, gpus: 8, every: {rack: 1}}]\nlevels: [{name: rack, label: rack}]\nqueues: [{name: a, tenant: true, guaranteed: {gpu: 0.5, memory: 1TiB}}]",
		"nodes: [{count: 1, cpu: 0.5, memory: 1.5GiB}]\nreservations: [{name: r, start: 2030-01-01T00:00:00Z, end: 2031-01-01T00:00:00Z, count: 1, maintenance: x}]",
		"nodes: [{count: 1}]\nfailures: {node: {mtbf: 1h, shape: 0.7}}\ncheckpoints: {interval: 1h, save: 1s}\npolicy: {planned: 5, planAge: 1m}\njobs: {level: rack, where: [{key: a, op: in, values: [b]}]}",
		"nodes: [{count: 1}]\nqueues: [null]", "nodes: [{count: 1}]\nqueues: {a: 1}", "nodes: {count: 1}", "nodes: [[]]", "nodes: [{count: 1e9}]", "nodes: [{count: 1, gpus: 9223372036854775808}]",
		"nodes: [{count: 1, every: {rack: x}}]", "nodes: [{count: 1, labels: {a: [b]}}]", "nodes: &a [{count: 1}]\nqueues: *a", "failures: {node: {shape: .nan}}", "failures: {gpu: {shape: .inf, mtbf: 1h}}", "{", "\x00", "# nothing", "nodes: [{count: 1}]\n---\nnodes: []",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := decodeCluster("f.yaml", data)
		refusedWell(t, err)
	})
}
