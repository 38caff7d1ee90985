package api

// Package is a folder that a user sent along with jobs, as the head keeps it.
type Package struct {
	Hash string `json:"hash"` // SHA-256 of the archive, 64 hex digits
	Size int64  `json:"size"` // of the archive in bytes
}
