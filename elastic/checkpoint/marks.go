package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// maxMark bounds committed.json and rolled-back.json; maxReason their text.
const (
	maxMark   = 16 << 10
	maxReason = 4 << 10
	maxSweep  = 10_000 // steps that one sweep order may name
)

// ErrMark is wrapped when a committed.json, rolled-back.json or sweep order cannot
// be used.
var ErrMark = errors.New("not a valid checkpoint mark")

// CommittedMark is committed.json: the word of the log, kept beside the files, so
// that a head without its log can adopt the step.
type CommittedMark struct {
	Format  string `json:"format"`  // "troupe-committed"
	Version int64  `json:"version"` // 1
	Cluster string `json:"cluster"` // id of the cluster whose log holds the entry
	Index   uint64 `json:"index"`   // of the entry
	Digest  string `json:"digest"`  // of manifest.json
}

// RolledBackMark is rolled-back.json: the step was committed and then freed. The
// directory stays as a fork and no head adopts it.
type RolledBackMark struct {
	Format  string `json:"format"`  // "troupe-rolled-back"
	Version int64  `json:"version"` // 1
	Cluster string `json:"cluster"`
	Index   uint64 `json:"index"`
	Reason  string `json:"reason"`
}

const (
	committedFormat  = "troupe-committed"
	rolledBackFormat = "troupe-rolled-back"
	sweepFormat      = "troupe-sweep"
)

// NewCommittedMark returns the bytes of committed.json.
func NewCommittedMark(cluster string, index uint64, digest string) ([]byte, error) {
	if !validDigest(digest) {
		return nil, fmt.Errorf("%w: digest %q", ErrMark, trim(digest))
	}
	return marshalMark(CommittedMark{committedFormat, Version, cluster, index, digest})
}

// NewRolledBackMark returns the bytes of rolled-back.json. A long reason is cut.
func NewRolledBackMark(cluster string, index uint64, reason string) ([]byte, error) {
	if len(reason) > maxReason {
		reason = trim(reason)
	}
	return marshalMark(RolledBackMark{rolledBackFormat, Version, cluster, index, reason})
}

func marshalMark(v any) ([]byte, error) {
	data, err := marshal(v)
	if err == nil && len(data) > maxMark {
		err = fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrMark, len(data), maxMark)
	}
	return data, err
}

// ParseCommittedMark reads committed.json strictly.
func ParseCommittedMark(data []byte) (CommittedMark, error) {
	var m CommittedMark
	if err := parseMark(data, maxMark, committedFormat, &m); err != nil {
		return CommittedMark{}, err
	}
	if !validDigest(m.Digest) {
		return CommittedMark{}, fmt.Errorf("%w: digest %q", ErrMark, trim(m.Digest))
	}
	return m, nil
}

// ParseRolledBackMark reads rolled-back.json strictly.
func ParseRolledBackMark(data []byte) (RolledBackMark, error) {
	var m RolledBackMark
	err := parseMark(data, maxMark, rolledBackFormat, &m)
	return m, err
}

// SweepOrder is the data of a wire.TaskSweep. Keep names every step that the log
// knows, committed or in the course of it: an entry can be in the log before
// committed.json is on the disk, and such a step is no garbage.
type SweepOrder struct {
	Format     string   `json:"format"`  // "troupe-sweep"
	Version    int64    `json:"version"` // 1
	Life       string   `json:"life"`
	Generation uint64   `json:"generation"` // current one of the run
	Keep       []string `json:"keep"`       // directory names
}

// NewSweepOrder returns the data of a sweep task.
func NewSweepOrder(life string, generation uint64, keep []StepName) ([]byte, error) {
	o := SweepOrder{Format: sweepFormat, Version: Version, Life: life, Generation: generation, Keep: []string{}}
	for _, n := range keep {
		o.Keep = append(o.Keep, n.String())
	}
	slices.Sort(o.Keep)
	if err := o.Check(); err != nil {
		return nil, err
	}
	return marshal(o)
}

// ParseSweepOrder reads the data of a sweep task strictly.
func ParseSweepOrder(data []byte) (SweepOrder, error) {
	var o SweepOrder
	if err := parseMark(data, 1<<20, sweepFormat, &o); err != nil {
		return SweepOrder{}, err
	}
	if err := o.Check(); err != nil {
		return SweepOrder{}, err
	}
	return o, nil
}

// Covers reports whether a step is old enough for the order and not among those to keep.
func (o SweepOrder) Covers(n StepName) bool {
	return n.Generation < o.Generation && !slices.Contains(o.Keep, n.String())
}

// Check refuses an order that names what cannot be.
func (o SweepOrder) Check() error {
	if err := ValidLife(o.Life); err != nil {
		return fmt.Errorf("%w: %w", ErrMark, err)
	}
	if len(o.Keep) > maxSweep {
		return fmt.Errorf("%w: it keeps %d steps, at most %d are allowed", ErrMark, len(o.Keep), maxSweep)
	}
	for _, k := range o.Keep {
		if _, err := ParseStepName(k); err != nil {
			return fmt.Errorf("%w: %w", ErrMark, err)
		}
	}
	return nil
}

func parseMark(data []byte, limit int, format string, into any) error {
	if len(data) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrMark, len(data), limit)
	}
	var head struct {
		Format  string `json:"format"`
		Version int64  `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrMark, err)
	}
	switch {
	case head.Format != format:
		return fmt.Errorf("%w: format %q, want %q", ErrMark, trim(head.Format), format)
	case head.Version > Version:
		return fmt.Errorf("%w: %s has version %d, this build reads %d; upgrade Troupe to read it", ErrNewer, format, head.Version, Version)
	case head.Version != Version:
		return fmt.Errorf("%w: version %d", ErrMark, head.Version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrMark, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: something follows the document", ErrMark)
	}
	// As with the manifest: only the one canonical form, so nothing is defaulted.
	canonical, err := marshal(into)
	if err != nil || !bytes.Equal(canonical, data) {
		return fmt.Errorf("%w: not in canonical form", ErrMark)
	}
	return nil
}
