// Package pack turns a folder into one file and back: which files go in (ignore rules,
// limits), an archive whose bytes follow from names, contents and execute bits alone, and
// an unpacker that trusts nothing of what it reads. The archive is a tar, compressed with
// zstd, and is named by the SHA-256 of its bytes. How it travels, where it is kept and who
// may have it belongs to others.
package pack

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Bounds of an archive.
const (
	// DefaultLimit is what a folder may hold unless the user says otherwise, in bytes.
	DefaultLimit = 100 << 20
	// MaxBytes is what an archive may unpack to, ten times the default limit: a user can
	// raise the limit so far, and no archive makes a node write more.
	MaxBytes = 10 * DefaultLimit
	// MaxArchive is the size of the file itself. One that compresses to nothing less than
	// MaxBytes carries its headers besides.
	MaxArchive = MaxBytes + MaxBytes/8
	// MaxEntries are files, folders and links together.
	MaxEntries = 100_000
	maxName    = 4096     // bytes of a path
	maxNames   = 32 << 20 // bytes of all paths: they are held in memory
	maxElement = 255      // bytes of one name in a path
	maxTarget  = 4096     // bytes of a link's target
)

// Errors that callers act on. The text around them says which entry and which limit.
var (
	// ErrLimit: the folder or the archive is over a limit, which the text names.
	ErrLimit = errors.New("over a limit")
	// ErrEntry: an entry is of a kind, or has a name, that no archive may hold.
	ErrEntry = errors.New("not allowed in a package")
	// ErrRule: a line of the ignore file is no rule.
	ErrRule = errors.New("no rule")
	// ErrDamaged: the archive is not whole, or no archive.
	ErrDamaged = errors.New("the package is damaged")
	// ErrChanged: a file changed while it was being packed.
	ErrChanged = errors.New("the folder changed while it was packed")
)

// Sum names an archive.
type Sum struct {
	Hash string // SHA-256 of its bytes, 64 hex digits
	Size int64  // bytes
}

// ValidHash reports whether s is 64 hex digits in lower case, and so safe as a file's name.
func ValidHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && s == strings.ToLower(s)
}

// refuse is the error for one entry.
func refuse(name, format string, args ...any) error {
	return fmt.Errorf("%q %s: %w", clip(name), fmt.Sprintf(format, args...), ErrEntry)
}

// over is the error for a limit.
func over(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrLimit)
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
