package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// mkdir and write are what a rank does.
func mkdir(t testing.TB, fsys FS, name string) {
	t.Helper()
	if err := fsys.MkdirAll(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(fsys FS, name string, data []byte) error {
	f, err := createNew(fsys, name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// inMemory is a step of two ranks on a disk in memory, with its manifest.
func inMemory(t testing.TB) (mem *disk.Mem, dir string, m *Manifest) {
	t.Helper()
	mem = disk.NewMem()
	name := StepName{Step: 10, Generation: 1, Life: "0a1b2c3d"}
	dir = StepDir(testStore, "digits", name)
	var reports []wire.Prepared
	for r := range int64(2) {
		mkdir(t, mem, path.Join(dir, RankDir(r)))
		report := wire.Prepared{Run: "digits", Generation: 1, Step: 10, Rank: r, World: 2, Dir: dir}
		for _, base := range []string{"model.pt", "rng.pt"} {
			file := RankDir(r) + "/" + base
			data := []byte(strings.Repeat(fmt.Sprintf("%s of rank %d;", base, r), 60))
			if err := write(mem, path.Join(dir, file), data); err != nil {
				t.Fatal(err)
			}
			report.Files = append(report.Files, wire.PreparedFile{Path: file, Length: int64(len(data)), Digest: DigestBytes(data)})
		}
		reports = append(reports, report)
	}
	data, digest, err := Build(reports, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewDirectory(mem, testStore, "w")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteManifest(t.Context(), "digits", dir, data, digest); err != nil {
		t.Fatal(err)
	}
	if m, _, err = ReadManifest(mem, dir); err != nil {
		t.Fatal(err)
	}
	return mem, dir, m
}

// overwrite changes a file in place, seen through all of its names.
func overwrite(t testing.TB, mem *disk.Mem, name string, data []byte) {
	t.Helper()
	f, err := mem.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
