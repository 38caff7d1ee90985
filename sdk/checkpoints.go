package troupe

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func stepPath(run string, step int64) string {
	return fmt.Sprintf("/api/v1/checkpoints/%s/%d", seg(run), step)
}

// ofGeneration names a generation; 0: the one that stands.
func ofGeneration(g uint64) url.Values {
	if g == 0 {
		return nil
	}
	return url.Values{"generation": {strconv.FormatUint(g, 10)}}
}

// VerifyCheckpoint reads a committed step whole, on a node.
func (c *Client) VerifyCheckpoint(ctx context.Context, run string, step int64) (api.VerifyResult, error) {
	var r api.VerifyResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: stepPath(run, step) + "/verify"}, &r)
	return r, err
}

// Checkpoint is one step of a run with its manifest; generation 0 is the one that stands.
func (c *Client) Checkpoint(ctx context.Context, run string, step int64, generation uint64) (api.CheckpointDetail, error) {
	var d api.CheckpointDetail
	return d, c.get(ctx, stepPath(run, step), ofGeneration(generation), &d)
}

// PinCheckpoint keeps a step from retention and removal, or lets it go again.
func (c *Client) PinCheckpoint(ctx context.Context, run string, step int64, generation uint64, pinned bool) (api.Checkpoint, error) {
	word := "/pin"
	if !pinned {
		word = "/unpin"
	}
	var k api.Checkpoint
	_, err := c.do(ctx, call{method: http.MethodPost, path: stepPath(run, step) + word, query: ofGeneration(generation)}, &k)
	return k, err
}

// RemoveCheckpoint deletes a step. Its state is removed, or deleting when no node could
// remove the files yet.
func (c *Client) RemoveCheckpoint(ctx context.Context, run string, step int64, generation uint64) (api.Checkpoint, error) {
	var k api.Checkpoint
	_, err := c.do(ctx, call{method: http.MethodDelete, path: stepPath(run, step), query: ofGeneration(generation), once: true}, &k)
	return k, err
}

// ExportCheckpoint copies a committed step to a folder of a node, verified.
func (c *Client) ExportCheckpoint(ctx context.Context, run string, step int64, generation uint64, req api.ExportRequest) (api.ExportResult, error) {
	var r api.ExportResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: stepPath(run, step) + "/export", query: ofGeneration(generation), body: req, once: true}, &r)
	return r, err
}

// AdoptCheckpoints takes the committed steps of a store's folder of a run into the records.
func (c *Client) AdoptCheckpoints(ctx context.Context, run, store string) (api.AdoptResult, error) {
	var r api.AdoptResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/checkpoints/" + seg(run) + "/adopt", body: api.AdoptRequest{Store: store}}, &r)
	return r, err
}

// CollectGarbage removes what attempts of a run left half written.
func (c *Client) CollectGarbage(ctx context.Context, run string) (api.GCResult, error) {
	var r api.GCResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/api/v1/checkpoints/" + seg(run) + "/gc"}, &r)
	return r, err
}

// Lineage is how the steps and attempts of a run came out of each other.
func (c *Client) Lineage(ctx context.Context, run string) (api.Lineage, error) {
	var l api.Lineage
	return l, c.get(ctx, "/api/v1/checkpoints/"+seg(run)+"/lineage", nil, &l)
}
