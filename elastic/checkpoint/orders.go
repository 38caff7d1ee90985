package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// ProbeOrder is the data of a wire.TaskProbe: one of its three steps, each for all
// nodes before the next one.
type ProbeOrder struct {
	Write  string   `json:"write,omitempty"`  // a nonce to write
	Look   []string `json:"look,omitempty"`   // nonces that must be there
	Forget string   `json:"forget,omitempty"` // a nonce to remove
}

// ProbeReply is the data of the reply: which nonces could not be seen.
type ProbeReply struct {
	Missing []string `json:"missing,omitempty"`
	// Free and Inodes are what the store has left; negative: it does not tell.
	Free   int64 `json:"free"`
	Inodes int64 `json:"inodes"`
}

func probe(ctx context.Context, s Store, o ProbeOrder) (ProbeReply, error) {
	r := ProbeReply{Free: -1, Inodes: -1}
	if len(o.Look) > maxSweep {
		return r, fmt.Errorf("a probe of %d nonces, at most %d", len(o.Look), maxSweep)
	}
	if o.Write != "" {
		if err := s.WriteNonce(ctx, o.Write); err != nil {
			return r, err
		}
		if d, ok := s.(*Directory); ok {
			if space, err := SpaceOf(d.fs, d.root); err == nil {
				r.Free, r.Inodes = space.Bytes, space.Inodes
			}
		}
	}
	for _, n := range o.Look {
		there, err := s.HasNonce(ctx, n)
		if err != nil {
			return r, err
		}
		if !there {
			r.Missing = append(r.Missing, n)
		}
	}
	if o.Forget != "" {
		return r, s.ForgetNonce(ctx, o.Forget)
	}
	return r, nil
}

// Found is one committed step that a listing found, with what its manifest says.
type Found struct {
	Dir     string        `json:"dir"`
	Cluster string        `json:"cluster"` // that committed it
	Digest  string        `json:"digest"`  // of the manifest, as the mark and the file say
	World   int64         `json:"world"`
	Bytes   int64         `json:"bytes"`
	Files   int64         `json:"files"`
	Parent  *int64        `json:"parent,omitempty"` // step that the attempt restored
	Metrics []wire.Metric `json:"metrics,omitempty"`
	// Problem says why the step cannot be used, as for a manifest that is damaged.
	Problem string `json:"problem,omitempty"`
	// Damage: the problem is the step's and not that it could not be read.
	Damage bool `json:"damage,omitempty"`
}

// ListReply is the data of the reply to a wire.TaskList.
type ListReply struct {
	Found             []Found  `json:"found,omitempty"` // the newest first
	Steps             int64    `json:"steps"`           // directories of steps, committed or not
	HighestGeneration uint64   `json:"highestGeneration"`
	Odd               []string `json:"odd,omitempty"`
}

// maxFound bounds a listing's reply.
const maxFound = 10_000

func list(ctx context.Context, s Store, run string) (ListReply, error) {
	l, err := s.List(ctx, run)
	if err != nil {
		return ListReply{}, err
	}
	r := ListReply{Steps: int64(len(l.Steps)), HighestGeneration: l.HighestGeneration, Odd: l.Odd[:min(len(l.Odd), maxBad)]}
	for _, c := range l.Candidates[:min(len(l.Candidates), maxFound)] {
		f := Found{Dir: c.Dir, Cluster: c.Mark.Cluster, Digest: c.Mark.Digest}
		m, data, err := s.Manifest(ctx, run, c.Dir)
		switch {
		case err != nil:
			f.Problem = err.Error()
			f.Damage = errors.Is(err, ErrManifest) || errors.Is(err, ErrNoManifest)
		case DigestBytes(data) != c.Mark.Digest:
			f.Problem, f.Damage = fmt.Sprintf("its manifest has the digest %s, %s says %s", DigestBytes(data), CommittedFile, c.Mark.Digest), true
		default:
			f.World, f.Bytes, f.Files, f.Parent = m.World, m.Bytes, int64(len(m.Files)), m.Parent
			f.Metrics = m.Metrics
		}
		r.Found = append(r.Found, f)
	}
	return r, nil
}

// NewProbeTask and the like make the data of a task; what they take always encodes.
func NewProbeTask(o ProbeOrder) []byte { return mustJSON(o) }

// NewExportTask makes the data of a wire.TaskExport: an absolute folder of the node
// that does it, which must be absent or empty.
func NewExportTask(folder string) []byte { return mustJSON(exportOrder{folder}) }

type exportOrder struct {
	Folder string `json:"folder"`
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return nil // no such value is ever given
	}
	return data
}

func readOrder(data []byte, into any) error {
	if len(data) > 1<<20 {
		return errors.New("an order of more than 1 MiB")
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	return nil
}

// export copies a committed step to a folder of this machine, every byte compared with
// the manifest on the way. Nothing that is there already is touched.
func export(ctx context.Context, s Store, fsys FS, t wire.Task, reply *wire.TaskReply) error {
	var o exportOrder
	if err := readOrder(t.Data, &o); err != nil {
		return err
	}
	if err := validAbsolute(o.Folder); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	switch entries, err := fsys.ReadDir(o.Folder); {
	case errors.Is(err, fs.ErrNotExist):
		if err := fsys.MkdirAll(o.Folder, 0o755); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	case err != nil:
		return fmt.Errorf("export: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("export: folder %s is not empty; name another", o.Folder)
	}
	m, data, err := s.Manifest(ctx, t.Run, t.Dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if got := DigestBytes(data); t.Digest != "" && got != t.Digest {
		return fmt.Errorf("export %s: %w: digest %s, the log says %s", t.Dir, ErrDigest, got, trim(t.Digest))
	}
	v, err := Fetch(ctx, s, t.Run, t.Dir, m, fsys, o.Folder)
	reply.Files, reply.Bytes = v.Files, v.Bytes
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if !v.Whole() {
		return &FilesError{Dir: t.Dir, Findings: v.Findings}
	}
	d := &Directory{fs: fsys, root: o.Folder, writer: "export"}
	if _, err := d.createOnly(o.Folder, ManifestFile, data); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}
