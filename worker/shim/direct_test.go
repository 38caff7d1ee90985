package shim

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOnLocalDisk(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"script": "#!/bin/sh\n", "args": "#! /usr/bin/env sh -x\n", "nested": "#!" + filepath.Join(dir, "script") + "\n",
		"relative": "#!sh\n", "none": "#!\n", "gone": "#!/no/such/interpreter\n", "itself": "#!" + filepath.Join(dir, "itself") + "\n",
		"empty": "", "network": "#!/proc/version\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if !local(dir) {
		t.Skipf("%s is on no file system that is known to be local", dir)
	}
	for _, c := range []struct {
		dir, program, path string
		ok                 bool
	}{
		{dir, "./script", "", true},
		{dir, "script", ".", true},
		{dir, "script", dir, true},
		{dir, "./args", "", true},
		{dir, "./nested", "", true},
		{"/", "sh", "/bin:/usr/bin", true},
		{dir, "./relative", "", false},
		{dir, "./none", "", false},
		{dir, "./gone", "", false},
		{dir, "./itself", "", false},
		{dir, "./empty", "", false},
		{dir, "./missing", "", false},
		{dir, "./network", "", false},
		{"/proc", "/bin/sh", "", false}, // stands for a folder on a network
		{"relative", "/bin/sh", "", false},
		{filepath.Join(dir, "none-such"), "/bin/sh", "", false},
	} {
		spec := &initSpec{Dir: c.dir, Argv: []string{c.program}, Env: []string{"PATH=" + c.path}}
		if path, ok := onLocalDisk(spec); ok != c.ok {
			t.Errorf("%+v: %q %t", c, path, ok)
		}
	}
}

// A journal is whole after every write, and two files are all that it ever takes.
func TestJournalTakesTurns(t *testing.T) {
	dir := t.TempDir()
	f := journalFile{path: filepath.Join(dir, JournalFile)}
	defer f.close()
	for i, alloc := range []string{"a", "a-long-name-that-makes-it-longer", "b", "c", "another-long-name", "d"} {
		if err := f.write(&Journal{Version: 1, Alloc: alloc, Seq: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		j, err := ReadJournal(dir)
		if err != nil || j.Alloc != alloc || j.Seq != uint64(i) {
			t.Errorf("write %d: %+v %v", i, j, err)
		}
	}
	if ents, err := os.ReadDir(dir); err != nil || len(ents) != 2 {
		t.Errorf("%v %v", ents, err)
	}
	// What stands there was taken away: the next write starts anew.
	for _, name := range []string{JournalFile, JournalFile + ".tmp"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		_ = f.write(&Journal{Version: 1, Alloc: "again", Seq: uint64(i)})
	}
	if j, err := ReadJournal(dir); err != nil || j.Seq != 2 {
		t.Errorf("%+v %v", j, err)
	}
}
