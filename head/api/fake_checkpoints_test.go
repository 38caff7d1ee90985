package api

import (
	"context"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (b *fake) Checkpoint(_ context.Context, run string, step int64, generation uint64) (api.CheckpointDetail, error) {
	return api.CheckpointDetail{Checkpoint: api.Checkpoint{Run: run, Step: step, Generation: generation}, Manifest: &api.Manifest{Run: run}}, nil
}

func (b *fake) PinCheckpoint(_ context.Context, run string, step int64, generation uint64, pinned bool) (api.Checkpoint, error) {
	return api.Checkpoint{Run: run, Step: step, Generation: generation, Pinned: pinned}, b.wrote("pin")
}

func (b *fake) RemoveCheckpoint(_ context.Context, run string, step int64, generation uint64) (api.Checkpoint, error) {
	return api.Checkpoint{Run: run, Step: step, Generation: generation, State: "removed"}, b.wrote("remove-checkpoint")
}

func (b *fake) ExportCheckpoint(_ context.Context, run string, step int64, _ uint64, req api.ExportRequest) (api.ExportResult, error) {
	return api.ExportResult{Run: run, Step: step, Folder: req.Folder, Node: req.Node}, b.wrote("export")
}

func (b *fake) Adopt(_ context.Context, run, store string) (api.AdoptResult, error) {
	return api.AdoptResult{Run: run, Store: store}, b.wrote("adopt")
}

func (b *fake) CollectGarbage(_ context.Context, run string) (api.GCResult, error) {
	return api.GCResult{Run: run}, b.wrote("gc")
}

func (b *fake) Lineage(_ context.Context, run string) (api.Lineage, error) {
	return api.Lineage{Run: run}, nil
}
