package pack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// lay makes files below dir: a name that ends in "/" is a folder, "name -> target" a link,
// "name*" an executable file.
func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at, target, isLink := strings.Cut(name, " -> ")
		at, exec := strings.CutSuffix(at, "*")
		path := filepath.Join(dir, at)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case strings.HasSuffix(at, "/"):
			err = os.MkdirAll(path, 0o755)
		case isLink:
			err = os.Symlink(target, path)
		default:
			mode := os.FileMode(0o600)
			if exec {
				mode = 0o700
			}
			err = os.WriteFile(path, []byte(files[name]), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func archive(t *testing.T, dir string) ([]byte, Sum) {
	t.Helper()
	f, err := Scan(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	sum, err := f.Write(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Size != int64(b.Len()) || !ValidHash(sum.Hash) {
		t.Fatalf("%d bytes were written, the sum is %+v", b.Len(), sum)
	}
	return b.Bytes(), sum
}

func tree() map[string]string {
	return map[string]string{
		"train.py": "print('x')\n", "run.sh*": "#!/bin/sh\n", "lib/a/b.py": "b", "lib-x": "sorts between lib and lib/",
		"empty/": "", "latest -> lib/a": "", "lib/up -> ../train.py": "", strings.Repeat("long", 40) + "/" + strings.Repeat("name", 40): "pax",
	}
}

// What is packed is names, contents and execute bits; nothing else changes a byte.
func TestArchiveIsDeterministic(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	lay(t, one, tree())
	lay(t, two, tree())
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	for _, name := range []string{"train.py", "lib", "run.sh"} {
		if err := os.Chtimes(filepath.Join(two, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(two, "train.py"), 0o640); err != nil { // not for executing
		t.Fatal(err)
	}
	a, sum := archive(t, one)
	b, again := archive(t, two)
	if !bytes.Equal(a, b) || sum != again {
		t.Errorf("equal folders gave %v and %v", sum, again)
	}
	z, err := zstd.NewReader(bytes.NewReader(a))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s carries a time or an owner: %+v", h.Name, h)
		}
	}
	for name, change := range map[string]func(dir string) error{
		"content": func(d string) error { return os.WriteFile(filepath.Join(d, "train.py"), []byte("print('y')\n"), 0o600) },
		"execute": func(d string) error { return os.Chmod(filepath.Join(d, "train.py"), 0o700) },
		"name":    func(d string) error { return os.Rename(filepath.Join(d, "train.py"), filepath.Join(d, "trains.py")) },
		"folder":  func(d string) error { return os.Mkdir(filepath.Join(d, "new"), 0o755) },
		"link": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "latest")), os.Symlink("lib", filepath.Join(d, "latest")))
		},
	} {
		dir := t.TempDir()
		lay(t, dir, tree())
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if _, other := archive(t, dir); other.Hash == sum.Hash {
			t.Errorf("another %s gave the same hash", name)
		}
	}
}

func TestThereAndBack(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, tree())
	data, _ := archive(t, dir)
	out := filepath.Join(t.TempDir(), "copy")
	if err := Unpack(t.Context(), bytes.NewReader(data), out, Limits{}); err != nil {
		t.Fatal(err)
	}
	if again, _ := archive(t, out); !bytes.Equal(data, again) {
		t.Error("what was unpacked packs to something else")
	}
	if st, err := os.Stat(filepath.Join(out, "run.sh")); err != nil || st.Mode().Perm()&0o100 == 0 {
		t.Errorf("run.sh: %v %v", st.Mode(), err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "latest", "b.py")); err != nil || string(b) != "b" {
		t.Errorf("through the link: %q %v", b, err)
	}
	if err := Unpack(t.Context(), bytes.NewReader(data), out, Limits{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("unpacked over a folder that is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(out, "train.py")); err != nil {
		t.Errorf("a refusal removed what was there: %v", err)
	}
}

func TestIgnore(t *testing.T) {
	files := map[string]string{
		"train.py": "", "data/big.bin": "", "data/keep.txt": "", "a/b/out.log": "", "out.log": "", "sub/build/x": "", "build/x": "",
		".git/config": "", "p/__pycache__/m.pyc": "", ".venv/bin/python": "", "deep/1/2/3/tmp": "", "deep/keep": "", "notes#1": "",
	}
	for _, c := range []struct {
		name, ignore string
		want         string // files that are packed, in order; those of Defaults never are
	}{
		{"none", "", "a/b/out.log build/x data/big.bin data/keep.txt deep/1/2/3/tmp deep/keep notes#1 out.log sub/build/x train.py"},
		{"glob", "# logs\n\n*.log  \n", "build/x data/big.bin data/keep.txt deep/1/2/3/tmp deep/keep notes#1 sub/build/x train.py"},
		{"folder", "build/\ndeep\n", "a/b/out.log data/big.bin data/keep.txt notes#1 out.log train.py"},
		{"anchored", "/build\n/out.log\r\n", "a/b/out.log data/big.bin data/keep.txt deep/1/2/3/tmp deep/keep notes#1 sub/build/x train.py"},
		{"but", "data/*\n!data/keep.txt\n", "a/b/out.log build/x data/keep.txt deep/1/2/3/tmp deep/keep notes#1 out.log sub/build/x train.py"},
		{"star does not cross", "*/x\n", "a/b/out.log data/big.bin data/keep.txt deep/1/2/3/tmp deep/keep notes#1 out.log sub/build/x train.py"},
		{"stars cross", "deep/**/tmp\n**/build/*\n", "a/b/out.log data/big.bin data/keep.txt deep/keep notes#1 out.log train.py"},
		{"set", "[bd]*/\n", "notes#1 out.log train.py"},
		{"defaults taken back", "*\n!.git/\n!.git/config\n!p/\n", ".git/config"},
		{"folders only", "train.py/\n", "a/b/out.log build/x data/big.bin data/keep.txt deep/1/2/3/tmp deep/keep notes#1 out.log sub/build/x train.py"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			lay(t, dir, files)
			if c.ignore != "" {
				lay(t, dir, map[string]string{IgnoreFile: c.ignore})
			}
			f, err := Scan(t.Context(), dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range f.entries {
				if e.kind == file && e.name != IgnoreFile {
					got = append(got, e.name)
				}
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("packed %s\nwant   %s", s, c.want)
			}
		})
	}
	for _, bad := range []string{"[a\n", "!\n", "/\n", "a//b\n", "../x\n", strings.Repeat("**/", 9) + "x\n"} {
		dir := t.TempDir()
		lay(t, dir, map[string]string{IgnoreFile: "ok\n" + bad})
		if _, err := Scan(t.Context(), dir, 0); err == nil || !strings.Contains(err.Error(), IgnoreFile+":2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  error
		text  string
	}{
		{"link to an absolute path", map[string]string{"d/data -> /mnt/data": ""}, ErrEntry, `"d/data" is a link to the absolute path "/mnt/data"`},
		{"link out", map[string]string{"d/data -> ../../x": ""}, ErrEntry, "outside of the folder"},
		{"case", map[string]string{"Makefile": "", "makefile": ""}, ErrEntry, `"makefile" and "Makefile" differ only in case`},
		{"not UTF-8", map[string]string{"a\xff": ""}, ErrEntry, "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			lay(t, dir, c.files)
			_, err := Scan(t.Context(), dir, 0)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q", err, c.text)
			}
		})
	}
}

func TestScanNamesTheLargest(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, map[string]string{
		"small": "s", "data/a/one.bin": strings.Repeat("x", 3000), "data/two": strings.Repeat("x", 1000), "model": strings.Repeat("x", 2000),
	})
	_, err := Scan(t.Context(), dir, 4096)
	large, ok := errors.AsType[*TooLarge](err)
	if !ok || !errors.Is(err, ErrLimit) {
		t.Fatal(err)
	}
	want := []Sized{{"data/", 4000}, {"model", 2000}, {"small", 1}}
	if large.Bytes != 6001 || !slices.Equal(large.Largest, want) || large.File != (Sized{"data/a/one.bin", 3000}) {
		t.Errorf("%+v", large)
	}
	if s := err.Error(); !strings.Contains(s, "5.9 KiB, over the limit of 4.0 KiB; the largest: data/ 3.9 KiB, model 2.0 KiB") {
		t.Error(s)
	}
	if _, err := Scan(t.Context(), dir, 6001); err != nil {
		t.Errorf("exactly the limit: %v", err)
	}
	if _, err := Scan(t.Context(), dir, MaxBytes+1); !errors.Is(err, ErrLimit) {
		t.Errorf("a limit above that of nodes: %v", err)
	}
}

func TestScanLeavesSocketsAndSeesChanges(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, map[string]string{"a": "1234", "b": "1234"})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Scan(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Left, []string{"pipe"}) || f.Files != 2 || f.Bytes != 8 {
		t.Errorf("%+v", f)
	}
	if !f.Holds("a") || !f.Holds("./b") || f.Holds("pipe") || f.Holds("c") {
		t.Error("Holds does not say what is packed")
	}
	for _, content := range []string{"12345", "123"} {
		lay(t, dir, map[string]string{"b": content})
		if _, err := f.Write(t.Context(), io.Discard); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "b is not what it was") {
			t.Errorf("%q: %v", content, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Write(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
