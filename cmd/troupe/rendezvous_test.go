package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/join"
)

// Whom the owner of the endpoint lets in, and what the others hear.
func TestAdmit(t *testing.T) {
	own := hello{
		ID: "r1", Name: "gpu-1", Command: []string{"/a/bin/python3", "-u", "/home/a/train.py", "--lr", "1"}, Ranks: 8, MaxRestarts: 3, MinNodes: 2, MaxNodes: 4,
		Role: "default", NodeRank: new(int64(0)),
	}
	there := map[string]known{
		"n2": {hello: hello{Name: "gpu-2", NodeRank: new(int64(1))}, at: time.Now()},
		"n3": {hello: hello{Name: "gpu-3", NodeRank: new(int64(2))}, at: time.Now().Add(-time.Hour)}, // it is gone
	}
	live := func(node string) bool { return node == "n2" }
	for _, tc := range []struct {
		name   string
		change func(h *hello)
		exit   int
		text   string // of the refusal, or the node's name
	}{
		{"the same command", func(*hello) {}, 0, "gpu-9"},
		{"other ranks, interpreter and folder", func(h *hello) {
			h.Ranks, h.Command = 2, []string{"/b/python", "-u", "/home/b/train.py", "--lr", "1"}
		}, 0, "gpu-9"},
		{"another run", func(h *hello) { h.ID = "r2" }, api.ExitConflict, "serves --rdzv-id=r1, not r2"},
		{"other arguments", func(h *hello) { h.Command = append([]string{}, own.Command[:4]...) }, api.ExitUsage, "the script and its arguments"},
		{"another script", func(h *hello) { h.Command = []string{"python3", "-u", "eval.py", "--lr", "1"} }, api.ExitUsage, "eval.py"},
		{"other restarts", func(h *hello) { h.MaxRestarts = 0 }, api.ExitUsage, "--max-restarts: 3 at the endpoint, 0 on this host"},
		{"other sizes", func(h *hello) { h.MinNodes = 1 }, api.ExitUsage, "--nnodes: 2:4 at the endpoint, 1:4 on this host"},
		{"no ranks", func(h *hello) { h.Ranks = 0 }, api.ExitUsage, "0 ranks"},
		{"a free place", func(h *hello) { h.NodeRank = new(int64(3)) }, 0, "gpu-9"},
		{"the owner's place", func(h *hello) { h.NodeRank = new(int64(0)) }, api.ExitUsage, "--node-rank=0 is that of gpu-1"},
		{"a place that is taken", func(h *hello) { h.NodeRank = new(int64(1)) }, api.ExitUsage, "--node-rank=1 is that of gpu-2"},
		{"the place of one that is gone", func(h *hello) { h.NodeRank = new(int64(2)) }, 0, "gpu-9"},
		{"a name that is taken", func(h *hello) { h.Name = "gpu-2" }, 0, "gpu-2-2"},
		{"the owner's name", func(h *hello) { h.Name = "gpu-1" }, 0, "gpu-1-2"},
		{"a name that is far too long", func(h *hello) { h.Name = strings.Repeat("x", 500) }, 0, "host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := own
			h.Name, h.NodeRank = "gpu-9", nil
			tc.change(&h)
			name, err := admit(&own, &h, "n9", there, live)
			no, refused := errors.AsType[*join.Refused](err)
			switch {
			case tc.exit == 0 && (err != nil || name != tc.text):
				t.Errorf("named %q, %v; want %q", name, err, tc.text)
			case tc.exit != 0 && (!refused || no.Exit != tc.exit || !strings.Contains(no.Text, tc.text)):
				t.Errorf("named %q, %+v; want exit %d and %q", name, err, tc.exit, tc.text)
			}
		})
	}
	// A host that comes back is not its own rival.
	h := own
	h.Name, h.NodeRank = "gpu-2", new(int64(1))
	if name, err := admit(&own, &h, "n2", there, live); err != nil || name != "gpu-2" {
		t.Errorf("come back as %q, %v", name, err)
	}
}

func TestWhereHostsMeet(t *testing.T) {
	yes, no := true, false
	for _, tc := range []struct {
		m       torchrun.Meeting
		address string
		owner   *bool
		refused string
	}{
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1"}, "gpu-1:29400", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1:7"}, "gpu-1:7", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "[fe80::1]:7"}, "[fe80::1]:7", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "fe80::1"}, "[fe80::1]:29400", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"is_host": "True"}}, "gpu-1:29400", &yes, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"is_host": "0"}}, "gpu-1:29400", &no, ""},
		{torchrun.Meeting{Backend: "static", MasterAddr: "gpu-1"}, "gpu-1:29500", nil, ""},
		{torchrun.Meeting{Backend: "static", MasterAddr: "gpu-1", MasterPort: 7, NodeRankGiven: true}, "gpu-1:7", &yes, ""},
		{torchrun.Meeting{Backend: "static", MasterAddr: "gpu-1", NodeRank: 1, NodeRankGiven: true}, "gpu-1:29500", &no, ""},
		{torchrun.Meeting{Backend: "static", MasterAddr: "gpu-1", Endpoint: "gpu-2:9"}, "gpu-2:9", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"store": "/"}}, "gpu-1:29400", nil, ""},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"store": "x"}}, "", nil, "store=x is not absolute"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"store": "/nosuch/x"}}, "", nil, "store=/nosuch/x is no folder"},
		{torchrun.Meeting{Backend: "c10d"}, "", nil, "--rdzv-endpoint"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: ":29400"}, "", nil, "--rdzv-endpoint"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1:99999"}, "", nil, "--rdzv-endpoint"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "a:b:c"}, "", nil, "--rdzv-endpoint"},
		{torchrun.Meeting{Backend: "etcd", Endpoint: "gpu-1"}, "", nil, "--rdzv-backend=etcd"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", NodeRank: 4, NodeRankGiven: true}, "", nil, "--node-rank=4"},
		{torchrun.Meeting{Backend: "c10d", Endpoint: "gpu-1", Conf: map[string]string{"join_timeout": "-1"}}, "", nil, "join_timeout"},
	} {
		tc.m.MinNodes, tc.m.MaxNodes = 2, 4
		o, err := meetingOf(&tc.m)
		switch {
		case tc.refused != "":
			if err == nil || !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%+v: %v, want %q", tc.m, err, tc.refused)
			}
		case err != nil || o.address() != tc.address || (o.owner == nil) != (tc.owner == nil) || o.owner != nil && *o.owner != *tc.owner:
			t.Errorf("%+v: %+v, %v", tc.m, o, err)
		}
	}
	if o, err := meetingOf(&torchrun.Meeting{Backend: "c10d", Endpoint: "127.0.0.1", MinNodes: 2, MaxNodes: 2}); err != nil || !o.here() || !o.local() {
		t.Errorf("loopback: %+v, %v", o, err)
	}
	if o, err := meetingOf(&torchrun.Meeting{Backend: "c10d", Endpoint: "192.0.2.77", MinNodes: 2, MaxNodes: 2}); err != nil || o.here() {
		t.Errorf("an address of another host: %+v, %v", o, err)
	}
}
