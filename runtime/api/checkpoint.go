package api

// CheckpointDetail is one step with what its manifest says.
type CheckpointDetail struct {
	Checkpoint
	// Manifest is absent when no node could read it; Problem says why then.
	Manifest *Manifest `json:"manifest,omitempty"`
	Problem  string    `json:"problem,omitempty"`
}

// Manifest is manifest.json of a step.
type Manifest struct {
	Format     string   `json:"format"`
	Version    int64    `json:"version"`
	Self       string   `json:"self"`
	Run        string   `json:"run"`
	Step       int64    `json:"step"`
	Generation uint64   `json:"generation"`
	Life       string   `json:"life"`
	World      int64    `json:"world"`
	Parent     *int64   `json:"parent"`
	Cursor     string   `json:"cursor"`
	Config     string   `json:"config"`
	Frameworks []string `json:"frameworks"`
	Metrics    []Metric `json:"metrics,omitempty"`
	// Mesh is the device mesh that the ranks gave, outermost first; absent when none was.
	Mesh  []MeshDim      `json:"mesh,omitempty"`
	Bytes int64          `json:"bytes"`
	Files []ManifestFile `json:"files"`
}

// MeshDim is one dimension of a device mesh.
type MeshDim struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Metric is one number that ranks gave with a step.
type Metric struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// ManifestFile is one file of a step.
type ManifestFile struct {
	Path   string `json:"path"`
	Rank   int64  `json:"rank"`
	Length int64  `json:"length"`
	Digest string `json:"digest"` // hex xxh3-128
	Part   string `json:"part"`
}

// ExportRequest asks to copy a committed step to a folder of a node.
type ExportRequest struct {
	Folder string `json:"folder"`         // absolute; absent or empty
	Node   string `json:"node,omitempty"` // id or name; default one that runs the job, or any
}

// ExportResult says what was copied; every byte was compared with the manifest.
type ExportResult struct {
	Run    string `json:"run"`
	Step   int64  `json:"step"`
	Node   string `json:"node"`
	Folder string `json:"folder"`
	Files  int64  `json:"files"`
	Bytes  int64  `json:"bytes"`
}

// AdoptRequest asks to take the committed steps of a run's folder into the records.
type AdoptRequest struct {
	Store string `json:"store"` // that holds the run's folder
}

// AdoptResult says what was taken and what was not.
type AdoptResult struct {
	Run      string      `json:"run"`
	Store    string      `json:"store"`
	Adopted  []int64     `json:"adopted"`            // steps, the newest first
	Verified []int64     `json:"verified,omitempty"` // of them, read whole: the newest and its parents
	Known    int64       `json:"known"`              // steps that are in the records already
	Refused  []LeftAside `json:"refused,omitempty"`
	// GenerationAbove is the highest generation found; every later attempt has a higher one.
	GenerationAbove uint64 `json:"generationAbove"`
}

// LeftAside is a step, or something in its place, that was not taken.
type LeftAside struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// GCResult says what garbage was removed.
type GCResult struct {
	Run     string   `json:"run"`
	Removed []string `json:"removed"` // directories of steps that never committed
}

// Lineage is how the steps and attempts of a run came out of each other.
type Lineage struct {
	Run      string           `json:"run"`
	Attempts []LineageAttempt `json:"attempts"` // by generation
}

// LineageAttempt is one generation with the steps that it committed.
type LineageAttempt struct {
	Generation  uint64       `json:"generation"`
	Job         string       `json:"job,omitempty"` // empty: no longer known
	Attempt     int64        `json:"attempt"`       // -1: no longer known
	RestoreStep *int64       `json:"restoreStep,omitempty"`
	RestoreGen  uint64       `json:"restoreGeneration,omitempty"`
	Cause       Cause        `json:"cause,omitempty"` // why it ended; empty: it runs, or ended well
	Steps       []Checkpoint `json:"steps"`
}
