package shim

import "github.com/troupe-runtime/troupe/runtime/wire"

// SaverRequest is one JSON line on the standard input of a saver, the long-lived
// child `<Config.Binary> saver` that does for a shim what needs hashing, much memory
// or a file system that may hang. Each gets one SaverReply with its ID, in any order.
//
//	begin    makes <store>/<run>/<step directory>/{rank-<r>,shared} → Path, Shared
//	prepare  makes the named files durable and hashes them → Files
//	stage    begin, then writes the staged files out of Buffer, then prepare
//	task     carries out Task, a small write of the head's → Task
//	verify   compares share Share of Shares with the manifest → Finding "" if whole
//
// With a store that ranks cannot reach by a path (s3://…), begin makes the folders below
// Staging instead; prepare uploads what lies there and answers when the store has
// confirmed it; verify downloads the whole step below Restore, compares it → Path.
type SaverRequest struct {
	ID         uint64     `json:"id"`
	Op         string     `json:"op"`
	Store      string     `json:"store"`
	Run        string     `json:"run"`
	Step       int64      `json:"step"`
	Generation uint64     `json:"gen"`
	Life       string     `json:"life"`
	Rank       int64      `json:"rank"`
	Files      []RankFile `json:"files,omitempty"`
	Dir        string     `json:"dir,omitempty"`    // verify: absolute directory of the step
	Digest     string     `json:"digest,omitempty"` // verify: of manifest.json
	Buffer     string     `json:"buffer,omitempty"` // stage: path that opens the shared memory
	Staging    string     `json:"staging,omitempty"`
	Restore    string     `json:"restore,omitempty"`
	Share      int64      `json:"share,omitempty"`
	Shares     int64      `json:"shares,omitempty"`
	Task       *wire.Task `json:"task,omitempty"`
}

// SaverReply answers a SaverRequest. Error is one sentence; Code is usage, space or
// io as in RankReply.
type SaverReply struct {
	ID      uint64      `json:"id"`
	Code    string      `json:"code,omitempty"`
	Error   string      `json:"error,omitempty"`
	Path    string      `json:"path,omitempty"`
	Shared  string      `json:"shared,omitempty"`
	Dir     string      `json:"dir,omitempty"`
	Files   []SavedFile `json:"files,omitempty"`
	Finding string      `json:"finding,omitempty"` // verify: the first file that is damaged, and how
	HashNS  int64       `json:"hashNs,omitempty"`  // prepare, stage: what reading and hashing took
	// Task is the answer to a task.
	Task *wire.TaskReply `json:"task,omitempty"`

	lost bool // the saver died: the work may be done again
}

// SavedFile is one durable, hashed file.
type SavedFile struct {
	Path   string `json:"path"`
	Part   string `json:"part"`
	Length int64  `json:"length"`
	Digest string `json:"digest"` // hex xxh3-128
}
