package main

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"

	python "github.com/troupe-runtime/troupe/sdk/python"
)

// extractShim writes the embedded shim under a name of its content, so that an
// upgrade does not change the program of a running shim.
func extractShim(dir string, b []byte) (string, error) {
	sum := fnv.New64a()
	_, _ = sum.Write(b)
	path := filepath.Join(dir, "bin", "troupe-shim-"+hex.EncodeToString(sum.Sum(nil)))
	if err := extract(path, b, 0o700); err != nil {
		return "", fmt.Errorf("write the shim: %w", err)
	}
	return path, nil
}

// extractWarm does the same for the forkserver's Python files, in a folder of their own,
// since that folder goes on the PYTHONPATH of forkservers.
func extractWarm(dir string) (string, error) {
	files, err := python.Warm()
	if err != nil {
		return "", err
	}
	names := slices.Sorted(maps.Keys(files))
	sum := fnv.New64a()
	for _, n := range names {
		_, _ = sum.Write(append([]byte(n+"\x00"), files[n]...))
	}
	folder := filepath.Join(dir, "bin", "troupe-warm-"+hex.EncodeToString(sum.Sum(nil)))
	for _, n := range names {
		if err := extract(filepath.Join(folder, n), files[n], 0o600); err != nil {
			return "", fmt.Errorf("write the forkserver: %w", err)
		}
	}
	return folder, nil
}

// extract writes a file unless it is there in its whole length.
func extract(path string, b []byte, mode os.FileMode) error {
	if fi, err := os.Stat(path); err == nil && fi.Size() == int64(len(b)) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := write(tmp, b, mode); err != nil {
		os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, path)
}

// writePiece keeps a program small. The kernel caches a file in pieces as large as it was
// written in, up to 2 MB, and a touch of one byte then makes the whole piece resident.
const writePiece = 16 << 10

func write(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	for piece := range slices.Chunk(b, writePiece) {
		if _, err := f.Write(piece); err != nil {
			f.Close()
			return err
		}
	}
	return f.Close()
}
