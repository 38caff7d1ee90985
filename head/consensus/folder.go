package consensus

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Format is the number of the on-disk format that this version writes. It only
// grows, and a folder with a higher one is refused.
//
//	1: FORMAT, NODE, LOCK, wal/ (raft-wal segments, every entry with a crc32c in its
//	   extensions; meta, checksummed), snapshots/ (one checksummed file each)
const Format = 1

// Names inside the folder.
const (
	fileFormat   = "FORMAT"
	fileNode     = "NODE"
	fileLock     = "LOCK"
	dirWAL       = "wal"
	dirWALNew    = "wal.new"
	dirSnapshots = "snapshots"
	maxSmallFile = 4096
)

// lockFolder takes the folder for this process, until the file is closed or the
// process ends. A lock of the kernel, not a pid file: it cannot be left behind.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, fileLock)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, storageError("open the lock file", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			b, _ := io.ReadAll(io.LimitReader(f, 32))
			pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			return nil, &LockedError{Dir: dir, PID: pid}
		}
		return nil, storageError("lock", path, err)
	}
	// The pid is for people; a full disk must not keep a head from starting here.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// exists tells whether a path is there; what cannot be looked at is an error.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, storageError("look at", path, err)
	}
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err == nil && len(b) > maxSmallFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxSmallFile)
	}
	return b, err
}

// checkFormat refuses a folder of a newer version, or one without a readable number.
func checkFormat(dir string) error {
	path := filepath.Join(dir, fileFormat)
	b, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return damagedFolder("%s is missing beside a log", path)
	}
	if err != nil {
		return storageError("read", path, err)
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || n < 1 {
		return damagedFolder("%s holds no format number", path)
	}
	if n > Format {
		return &FormatError{Dir: dir, Found: n, Supported: Format}
	}
	return nil
}

// nodeID reads the head's id, or stores want (random when empty) if there is none.
func nodeID(dir, want string, create bool) (string, error) {
	path := filepath.Join(dir, fileNode)
	b, err := readSmall(path)
	switch {
	case err == nil:
		id := string(bytes.TrimSpace(b))
		if id == "" || strings.ContainsAny(id, " \t\r\n") {
			return "", damagedFolder("%s holds no node id", path)
		}
		if want != "" && want != id {
			return "", fmt.Errorf("%w: node id %q was asked for, but folder %s belongs to %q", ErrConfig, want, dir, id)
		}
		return id, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", storageError("read", path, err)
	case !create:
		return "", damagedFolder("%s is missing beside a log", path)
	}
	if want == "" {
		want = randomID()
	}
	return want, writeAtomic(path, []byte(want+"\n"))
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// writeAtomic makes path hold data, or leaves what was there, whatever happens.
func writeAtomic(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, data); err != nil {
		_ = os.Remove(tmp)
		return storageError("write", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return storageError("write", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes names created in or renamed into dir survive a power loss.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return storageError("sync the folder", dir, err)
	}
	err = f.Sync()
	return storageError("sync the folder", dir, errors.Join(err, f.Close()))
}
