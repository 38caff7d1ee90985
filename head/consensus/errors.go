package consensus

import (
	"errors"
	"fmt"
)

// Errors that callers act on. Each is wrapped with what happened and to what; test
// with errors.Is.
var (
	// ErrNotLeader: this node does not lead. Nothing was proposed; try the leader.
	ErrNotLeader = errors.New("consensus: this head is not the leader; nothing was proposed")
	// ErrOutcomeUnknown: the proposal may be applied, now or later, or never. Ask the
	// state, or repeat it with its idempotency key.
	ErrOutcomeUnknown = errors.New("consensus: the outcome of the proposal is unknown")
	// ErrTooLarge: over MaxProposal bytes. Nothing was proposed; split it.
	ErrTooLarge = errors.New("consensus: proposal too large")
	// ErrBusy: the queue of proposals is full. Nothing was proposed; try again later.
	ErrBusy = errors.New("consensus: too many proposals are waiting; nothing was proposed")
	// ErrClosed: the node was closed. Nothing was proposed.
	ErrClosed = errors.New("consensus: the node is closed")
	// ErrStopped: the replica stopped itself; the cause is wrapped and on Fatal.
	ErrStopped = errors.New("consensus: the replica has stopped")
	// ErrAlreadyInitialized: the folder holds a cluster; Init makes one only once.
	ErrAlreadyInitialized = errors.New("consensus: the folder already holds a cluster")
	// ErrNotInitialized: the folder holds no cluster.
	ErrNotInitialized = errors.New("consensus: the folder holds no cluster")
	// ErrLocked: another process has the folder open. See LockedError.
	ErrLocked = errors.New("consensus: the folder is in use")
	// ErrNewerFormat: a newer version wrote the folder. See FormatError.
	ErrNewerFormat = errors.New("consensus: the folder was written by a newer version")
	// ErrDamagedLog: an entry of the log is not what was written. See DamagedLogError.
	ErrDamagedLog = errors.New("consensus: the log is damaged")
	// ErrDamagedFolder: a file beside the log is missing or not what was written.
	ErrDamagedFolder = errors.New("consensus: the folder is damaged")
	// ErrStorage: the operating system refused a file operation. See StorageError.
	ErrStorage = errors.New("consensus: the operating system refused")
	// ErrConfig: the configuration contradicts itself.
	ErrConfig = errors.New("consensus: configuration")
)

// DamagedLogError names the entry that is damaged. errors.Is(err, ErrDamagedLog).
type DamagedLogError struct {
	Index  uint64 // first damaged entry
	Reason string
}

func (e *DamagedLogError) Error() string {
	return fmt.Sprintf("consensus: log entry %d is damaged: %s; do not edit the folder: put a copy of it in its place that was made while no head ran on it, or let this head's peers teach an empty one", e.Index, e.Reason)
}

// Is makes errors.Is(err, ErrDamagedLog) true.
func (e *DamagedLogError) Is(target error) bool { return target == ErrDamagedLog }

// LockedError says who holds the folder. errors.Is(err, ErrLocked).
type LockedError struct {
	Dir string
	PID int // 0 when the holder has not written it
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("consensus: folder %s is in use by %s; stop it first, or use another folder", e.Dir, who)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// FormatError says which format was found. errors.Is(err, ErrNewerFormat).
type FormatError struct {
	Dir              string
	Found, Supported int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("consensus: folder %s has format %d, this version reads up to %d; start a newer troupe", e.Dir, e.Found, e.Supported)
}

// Is makes errors.Is(err, ErrNewerFormat) true.
func (e *FormatError) Is(target error) bool { return target == ErrNewerFormat }

// StorageError is a file operation that the operating system refused: no permission,
// disk full, input/output error. errors.Is(err, ErrStorage), and Unwrap gives the
// system's own error, such as ENOSPC.
type StorageError struct {
	Op   string // what was being done, as in "append to the log"
	Path string
	Err  error
}

func (e *StorageError) Error() string {
	return fmt.Sprintf("consensus: the operating system refused to %s in %s: %v", e.Op, e.Path, e.Err)
}

// Is makes errors.Is(err, ErrStorage) true.
func (e *StorageError) Is(target error) bool { return target == ErrStorage }

// Unwrap returns the system's error.
func (e *StorageError) Unwrap() error { return e.Err }

func storageError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*StorageError](err); ok {
		return err
	}
	return &StorageError{Op: op, Path: path, Err: err}
}

// damagedFolder builds an error that is ErrDamagedFolder.
func damagedFolder(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamagedFolder}, args...)...)
}
