package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Files of a step's directory which Troupe itself writes. Ranks write only below
// rank-<r>/ and shared/, so they cannot produce one of these names.
const (
	ManifestFile   = "manifest.json"
	CommittedFile  = "committed.json"
	RolledBackFile = "rolled-back.json"
	SharedDir      = "shared"
)

// Bounds of names. A step is written by users' programs, so every length has one.
const (
	MaxRunName    = 63
	MaxPath       = 1024 // bytes of a file's path relative to the step's directory
	MaxPathParts  = 16
	MaxPathPart   = 255
	lifeDigits    = 8
	maxStepDigits = 19
	maxGenDigits  = 20
)

// ErrName is wrapped by every refusal of a run, directory or file name.
var ErrName = errors.New("name refused")

func badName(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrName, fmt.Sprintf(format, args...))
}

// ValidRun checks the name of a run: 1 to 63 letters, digits, '.', '_' or '-',
// beginning with a letter or digit. It becomes a folder name, so nothing that a
// file system or a shell treats specially may be in it.
func ValidRun(run string) error {
	if run == "" {
		return badName("a run needs a name")
	}
	if len(run) > MaxRunName {
		return badName("run name has %d characters, at most %d are allowed", len(run), MaxRunName)
	}
	for i := 0; i < len(run); i++ {
		c := run[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return badName("run name %q: character %q at position %d; use letters, digits, '.', '_' and '-', beginning with a letter or digit", run, string(rune(c)), i+1)
		}
	}
	return nil
}

// ValidLife checks the life of a cluster: 8 lower-case hexadecimal digits.
func ValidLife(life string) error {
	if len(life) != lifeDigits {
		return badName("life %q: want %d hexadecimal digits", life, lifeDigits)
	}
	if !lowerHex(life) {
		return badName("life %q: want lower-case hexadecimal digits", life)
	}
	return nil
}

func lowerHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

// StepName is the identity of one attempt to save one step. The generation and the
// life make the directory unique, so that a step is never written over an older
// one: a save that died half-way is left beside the next, never mixed into it.
type StepName struct {
	Step       int64
	Generation uint64
	Life       string
}

// String formats the directory name, step-<n>-g<generation>-<life>.
func (n StepName) String() string {
	return fmt.Sprintf("step-%d-g%d-%s", n.Step, n.Generation, n.Life)
}

// Older reports whether n comes before o by (generation, step): a higher generation
// is newer even at a smaller step, because it began after a roll-back.
func (n StepName) Older(o StepName) bool {
	if n.Generation != o.Generation {
		return n.Generation < o.Generation
	}
	return n.Step < o.Step
}

// ParseStepName reads a directory name. Only what String produces is accepted, so
// that one step cannot be named in two ways ("step-01", "step-1").
func ParseStepName(name string) (StepName, error) {
	bad := func() (StepName, error) {
		return StepName{}, badName("%q is not a checkpoint directory; want step-<n>-g<generation>-<life>", trim(name))
	}
	rest, ok := strings.CutPrefix(name, "step-")
	if !ok {
		return bad()
	}
	parts := strings.Split(rest, "-")
	if len(parts) != 3 || len(parts[0]) > maxStepDigits || len(parts[1]) > maxGenDigits+1 {
		return bad()
	}
	step, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil || step > math.MaxInt64 {
		return bad()
	}
	digits, ok := strings.CutPrefix(parts[1], "g")
	if !ok {
		return bad()
	}
	gen, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || ValidLife(parts[2]) != nil {
		return bad()
	}
	n := StepName{Step: int64(step), Generation: gen, Life: parts[2]}
	if n.String() != name {
		return bad()
	}
	return n, nil
}

// RankDir is the folder of one rank inside a step's directory.
func RankDir(rank int64) string { return "rank-" + strconv.FormatInt(rank, 10) }

// s3Scheme begins the address of a store in a bucket.
const s3Scheme = "s3://"

// Remote reports whether a store's address or a step's directory is in a bucket, where
// ranks cannot write: they write to a folder of their node and the saver uploads.
func Remote(store string) bool { return strings.HasPrefix(store, s3Scheme) }

// StepDir is the directory of a step: an absolute path, or an s3:// address without
// the store's options.
func StepDir(store, run string, n StepName) string {
	if Remote(store) {
		return storeRoot(store) + "/" + run + "/" + n.String()
	}
	return path.Join(store, run, n.String())
}

// storeRoot is an s3:// address without its options.
func storeRoot(store string) string {
	root, _, _ := strings.Cut(store, "?")
	return root
}

// SplitDir cuts a step's directory into its store (without options), its run and its
// own name. What it returns is not checked; see ValidDir.
func SplitDir(dir string) (store, run, name string) {
	cut := func(s string) (string, string) {
		if i := strings.LastIndexByte(s, '/'); i >= 0 {
			return s[:i], s[i+1:]
		}
		return "", s
	}
	rest, name := cut(dir)
	store, run = cut(rest)
	return store, run, name
}

// ValidDir checks that dir is what StepDir makes for this store, run and a step, and
// returns the step. It is the one gate between a path in a message and the disk.
func ValidDir(store, run, dir string) (StepName, error) {
	valid := validAbsolute
	if Remote(store) {
		valid = validRemote
	}
	if err := valid(store); err != nil {
		return StepName{}, fmt.Errorf("store: %w", err)
	}
	if err := ValidRun(run); err != nil {
		return StepName{}, err
	}
	if err := valid(dir); err != nil {
		return StepName{}, fmt.Errorf("directory: %w", err)
	}
	n, err := ParseStepName(path.Base(dir))
	if err != nil {
		return StepName{}, err
	}
	if StepDir(store, run, n) != dir {
		return StepName{}, badName("directory %q does not belong to run %q in store %q", dir, run, store)
	}
	return n, nil
}

func validAbsolute(p string) error {
	switch {
	case !path.IsAbs(p):
		return badName("%q is not an absolute path", trim(p))
	case path.Clean(p) != p:
		return badName("%q is not a clean path", trim(p))
	case len(p) > 4096:
		return badName("a path of %d bytes is too long", len(p))
	case strings.ContainsRune(p, 0):
		return badName("a path holds a NUL byte")
	case p == "/":
		return badName("the root folder cannot be a store")
	}
	return nil
}

// validRemote checks an s3:// address, options aside: a bucket's name and plain,
// clean parts after it.
func validRemote(p string) error {
	root := storeRoot(p)
	if len(p) > 4096 {
		return badName("an address of %d bytes is too long", len(p))
	}
	rest, ok := strings.CutPrefix(root, s3Scheme)
	if !ok {
		return badName("%q is not an s3:// address", trim(p))
	}
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." {
			return badName("%q is not a clean address ('.', '..', double or final slash)", trim(p))
		}
		for _, c := range part {
			alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.'
			if !alnum && (i == 0 || c != '_' && c != '=' && c != '+' && (c < 'A' || c > 'Z')) {
				return badName("%q: character %q; buckets have lower-case letters, digits, '-' and '.', prefixes also capitals, '_', '=' and '+'", trim(p), string(c))
			}
		}
	}
	if n := len(parts[0]); n < 3 || n > 63 {
		return badName("bucket %q: 3 to 63 characters", trim(parts[0]))
	}
	return nil
}

// ValidFile checks the path of a step's file, relative to the step's directory:
// slash-separated, clean, printable UTF-8, below rank-<r>/ of the reporting rank or
// below shared/.
func ValidFile(p string, rank int64) error {
	top, rest, err := splitFile(p)
	if err != nil {
		return err
	}
	if top != SharedDir && top != RankDir(rank) {
		return badName("file %q of rank %d lies outside %s/ and %s/", trim(p), rank, RankDir(rank), SharedDir)
	}
	if rest == "" {
		return badName("file %q of rank %d is a folder", trim(p), rank)
	}
	return nil
}

// ValidPath checks a file's path within a step, whoever prepared it.
func ValidPath(p string) error {
	_, _, err := splitFile(p)
	return err
}

func splitFile(p string) (top, rest string, err error) {
	switch {
	case p == "":
		return "", "", badName("a file has an empty path")
	case len(p) > MaxPath:
		return "", "", badName("a file path has %d bytes, at most %d are allowed", len(p), MaxPath)
	case !utf8.ValidString(p):
		return "", "", badName("file path %q is not UTF-8", trim(p))
	case path.IsAbs(p):
		return "", "", badName("file path %q is absolute; it must be relative to the step's directory", trim(p))
	case path.Clean(p) != p:
		return "", "", badName("file path %q is not clean ('.', '..', double or final slash)", trim(p))
	}
	for _, r := range p {
		if r == '\\' || !unicode.IsGraphic(r) {
			return "", "", badName("file path %q holds %q, which is not allowed", trim(p), r)
		}
	}
	parts := strings.Split(p, "/")
	if len(parts) > MaxPathParts {
		return "", "", badName("file path %q has more than %d folders", trim(p), MaxPathParts)
	}
	for _, part := range parts {
		if part == ".." || part == "." || part == "" {
			return "", "", badName("file path %q is not clean ('.', '..', double or final slash)", trim(p))
		}
		if len(part) > MaxPathPart {
			return "", "", badName("file path %q has a part of more than %d bytes", trim(p), MaxPathPart)
		}
	}
	return parts[0], strings.Join(parts[1:], "/"), nil
}

// trim keeps what strangers send short and printable in errors.
func trim(s string) string {
	const most = 120
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
