package head

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// A node gets the packages of jobs that are placed on it, over its own subject, and no
// others (P10); a job that names a package which nobody sent is refused.
func TestPackagesOfANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Init(dir); err != nil {
		t.Fatal(err)
	}
	h, err := Start(Options{Dir: dir, APIAddress: "127.0.0.1:0", BusAddress: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	token, err := ReadToken(dir, NodeTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	request := func(c bus.Conn, subject string, body, reply any) error {
		data, err := wire.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		for {
			raw, err := c.Request(ctx, subject, data)
			switch {
			case err == nil:
				return wire.Unmarshal(raw, reply)
			case !errors.Is(err, bus.ErrNoResponder) || ctx.Err() != nil:
				return err
			}
			time.Sleep(time.Millisecond) // it begins to listen when it leads
		}
	}
	conns := map[string]bus.Conn{}
	for i, id := range []string{"n1", "n2"} {
		c, err := h.InProcess(id, token)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		conns[id] = c
		var rep wire.RegisterReply
		info := wire.NodeInfo{
			Name: id, Address: "127.0.0.1", BootID: "boot-" + id, CPU: unit.MilliCPU(1000 * (i + 1)), Memory: unit.GiB,
			Level: wire.Level, Session: "s" + id, Started: 1,
		}
		if err := request(c, wire.HeadRegister+id, wire.RegisterRequest{Node: info, Seq: 1, Ports: []int64{4000}}, &rep); err != nil || rep.Error != "" {
			t.Fatal(err, rep.Error)
		}
	}
	content := bytes.Repeat([]byte("0123456789"), wire.MaxPiece/10+1) // more than one piece
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	c := h.Control()
	spec := api.JobSpec{Name: "j", Command: []string{"true"}, Package: hash, Resources: api.Resources{CPU: 2000}} // only n2 has so much
	var p *api.Problem
	if _, err := c.Submit(ctx, spec, headapi.Idempotency{}); !errors.As(err, &p) || p.Code != "TRP-P404" || p.Help == "" {
		t.Fatalf("a package that nobody sent: %v", err)
	}
	if _, err := c.PutPackage(ctx, hash, int64(len(content)), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	piece := func(node string, offset int64) wire.PackagePiece {
		var r wire.PackagePiece
		if err := request(conns[node], wire.HeadPackage+node, wire.PackageRequest{Hash: hash, Offset: offset}, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := piece("n2", 0); r.Error == "" || len(r.Data) > 0 {
		t.Errorf("before any job names it: %d bytes", len(r.Data))
	}
	made, err := c.Submit(ctx, spec, headapi.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	placed(t, h, made.ID)
	var got []byte
	for int64(len(got)) < int64(len(content)) {
		r := piece("n2", int64(len(got)))
		if r.Error != "" || r.Size != int64(len(content)) || len(r.Data) == 0 || len(r.Data) > wire.MaxPiece {
			t.Fatalf("%q, %d of %d bytes", r.Error, len(r.Data), r.Size)
		}
		got = append(got, r.Data...)
	}
	if !bytes.Equal(got, content) {
		t.Error("other bytes came")
	}
	if r := piece("n1", 0); !strings.Contains(r.Error, "no job on this node") || len(r.Data) > 0 {
		t.Errorf("a node without the job: %+v", r.Error)
	}
	var r wire.PackagePiece
	if err := request(conns["n1"], wire.HeadPackage+"n2", wire.PackageRequest{Hash: hash}, &r); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("under another node's name: %v %q", err, r.Error)
	}
	for _, bad := range []api.JobSpec{
		{Name: "j", Command: []string{"true"}, Package: hash, WorkingDir: "/abs"},
		{Name: "j", Command: []string{"true"}, Package: hash, WorkingDir: "../up"},
		{Name: "j", Command: []string{"true"}, WorkingDir: "sub"},
	} {
		if _, err := c.Submit(ctx, bad, headapi.Idempotency{}); !errors.As(err, &p) || p.Status != 422 {
			t.Errorf("workingDir %q, package %.8q: %v", bad.WorkingDir, bad.Package, err)
		}
	}
}

// placed waits until a job holds its bundles.
func placed(t *testing.T, h *Head, id string) {
	t.Helper()
	limit := time.After(patience)
	for {
		changed := h.Control().Changed()
		j, err := h.Control().Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if j.State == api.Reserved || j.State == api.Starting {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the job is %s: %+v", j.State, j.Reason)
		}
	}
}
