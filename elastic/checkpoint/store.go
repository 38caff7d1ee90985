package checkpoint

import (
	"context"
	"errors"
	"io"
	"time"
)

// Store is where the steps of runs are kept: a Directory, or a bucket (package
// elastic/checkpoint/store). It holds no state of its own, so any agent that reaches
// the store can do any operation, and each may be repeated after it was cut short
// anywhere. dir is a step's directory as StepDir makes it for this store.
type Store interface {
	// WriteManifest writes manifest.json, create-only, after it has looked at every
	// file's length. An equal one that is there already counts as written, a different
	// one is ErrDifferentManifest, a file that does not fit a *FilesError.
	WriteManifest(ctx context.Context, run, dir string, data []byte, digest string) error
	// WriteCommitted writes committed.json beside the manifest that it names.
	WriteCommitted(ctx context.Context, run, dir string, mark []byte) error
	// WriteRolledBack writes rolled-back.json; one that is there already stands, and
	// where no step stands there is nothing to mark.
	WriteRolledBack(ctx context.Context, run, dir string, mark []byte) error
	// Manifest reads and checks manifest.json and returns it with its bytes. Errors wrap
	// ErrNoManifest, ErrManifest or ErrNewer; any other proves nothing about the step.
	Manifest(ctx context.Context, run, dir string) (*Manifest, []byte, error)
	// Verify compares a whole step with its manifest, and the manifest with digest
	// unless that is empty. Damage is a *FilesError or wraps ErrNoManifest, ErrManifest
	// or ErrDigest.
	Verify(ctx context.Context, run, dir, digest string) (Verification, error)
	// Open reads one file of a step and tells its length. A file that is not there wraps
	// fs.ErrNotExist.
	Open(ctx context.Context, run, dir, file string) (io.ReadCloser, int64, error)
	// List tells what a run's folder holds. It is how a head that lost its records finds
	// candidates; what is committed is never decided by a listing.
	List(ctx context.Context, run string) (Listing, error)
	// Delete removes a step, committed.json first. One that is gone already is success.
	Delete(ctx context.Context, run, dir string) error
	// Sweep removes a run's garbage and returns the names of what it removed.
	Sweep(ctx context.Context, run string, o SweepOrder, now time.Time) ([]string, error)
	// WriteNonce and HasNonce prove that two nodes see one store; ForgetNonce cleans up.
	// WriteNonce proves as well that the store keeps its promise to create a name once.
	WriteNonce(ctx context.Context, nonce string) error
	HasNonce(ctx context.Context, nonce string) (bool, error)
	ForgetNonce(ctx context.Context, nonce string) error
}

// Opener opens a store by its address.
type Opener func(ctx context.Context, store string) (Store, error)

// Directories opens directory stores alone, as NewDirectory does.
func Directories(fsys FS, writer string) Opener {
	return func(_ context.Context, store string) (Store, error) { return NewDirectory(fsys, store, writer) }
}

// Uploader is a store that ranks cannot write to: they write to a folder of their node,
// and the saver uploads.
type Uploader interface {
	Store
	// Upload copies the local file at path to file of the step. It returns the hex
	// xxh3-128 and the length of what was sent, after the store has confirmed both the
	// length and a checksum of what it keeps.
	Upload(ctx context.Context, run, dir, file string, fsys FS, path string) (digest string, length int64, err error)
}

// ErrNoCreateOnly is wrapped when a store lets two writers create one name: no step
// could be committed once there.
var ErrNoCreateOnly = errors.New("the store does not keep two writers from creating the same name")

var _ Store = (*Directory)(nil)
