package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/program": 0o700, "bin/text": 0o600, "here": 0o700} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dir, program, path string
		code               int64
		says               string
	}{
		{dir, "./here", "", 0, ""},
		{dir, filepath.Join(dir, "here"), "", 0, ""},
		{dir, "program", "bin", 0, ""}, // relative to the rank's folder
		{dir, "program", "/none:" + filepath.Join(dir, "bin"), 0, ""},
		{"", "/bin/sh", "", 0, ""},
		{dir, "program", "/none", 127, `"program" was not found in PATH (/none)`},
		{dir, "text", "bin", 126, "not executable"},
		{dir, "./bin", "", 126, "is a directory"},
		{dir, "./gone", "", 127, "gone"},
		{dir, "", "", 127, "the command is empty"},
		{filepath.Join(dir, "gone"), "/bin/sh", "", 127, `working directory "` + filepath.Join(dir, "gone") + `"`},
		{filepath.Join(dir, "here"), "/bin/sh", "", 127, "not a directory"},
	} {
		code, err := CheckStart(c.dir, []string{c.program}, c.path)
		if code != c.code || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %d, %v", c, code, err)
		}
	}
	if code, err := CheckStart(dir, nil, ""); code != 127 || err == nil {
		t.Errorf("no command: %d, %v", code, err)
	}
}
