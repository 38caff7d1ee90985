package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The queues of a cluster file are written as those of troupe queue apply: gpu: 8 are eight.
func TestClusterFile(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"nodes: [{count: 1, gpus: 8}]\nqueues: [{name: a, tenant: true, guaranteed: {gpu: 8, memory: 2GiB}}]", ""},
		{"nodes: [{count: 1, gpus: 8}]\nqueues: [{name: a, tenant: true, limit: {gpu: many}}]", `:2:47: "many" of "gpu": a number belongs here`},
		{"nodes: [{count: 1, gpus: 8}]\nqueues: [{nam: a}]", `unknown field "nam"`},
		{"a: &a [1]\nnodes: *a", `unknown field "a"`},
		{"nodes: [{count: 1}, *a]", "a"},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readCluster(path)
		if tc.want != "" {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		gpus, _ := c.Queues[0].Guaranteed.Get("gpu")
		memory, _ := c.Queues[0].Guaranteed.Get("memory")
		if gpus != 8000 || memory != 2<<30 {
			t.Errorf("%d thousandths, %d bytes", gpus, memory)
		}
	}
	for _, word := range []string{"99999999999999999999x8", "1x65", "0x8", "300000x1"} {
		if c, err := readCluster(word); err == nil {
			t.Errorf("%s: %d nodes", word, len(c.Nodes))
		}
	}
	if c, err := readCluster("80x8"); err != nil || c.Nodes[0].Count != 80 {
		t.Errorf("%v %v", c, err)
	}
	if _, err := readCluster("none.yaml"); err == nil || strings.Contains(err.Error(), "open none.yaml") {
		t.Errorf("%v", err)
	}
}
