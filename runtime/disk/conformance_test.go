package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// rooted is one of the file systems with a folder to work in.
type rooted struct {
	FS
	dir string
}

func both(t *testing.T) map[string]rooted {
	mem := NewMem()
	if err := mem.MkdirAll("/disk", 0o755); err != nil {
		t.Fatal(err)
	}
	return map[string]rooted{"os": {OS(), t.TempDir()}, "memory": {mem, "/disk"}, "faulty": {NewFaulty(OS()), t.TempDir()}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f FS, name, text string) {
	t.Helper()
	file, err := f.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	must(t, err)
	_, err = file.Write([]byte(text))
	must(t, err)
	must(t, file.Close())
}

func read(f FS, name string) string {
	b, err := ReadFile(f, name, 1<<20)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestFiles(t *testing.T) {
	for name, f := range both(t) {
		t.Run(name, func(t *testing.T) {
			a := path.Join(f.dir, "a")
			file, err := f.OpenFile(a, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
			must(t, err)
			if file.Name() != a {
				t.Errorf("name %q", file.Name())
			}
			n, err := file.Write([]byte("hello world"))
			if n != 11 || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
			buf := make([]byte, 5)
			if n, err := file.ReadAt(buf, 6); n != 5 || err != nil || string(buf) != "world" {
				t.Errorf("ReadAt: %d %q %v", n, buf, err)
			}
			if n, err := file.ReadAt(buf, 9); n != 2 || !errors.Is(err, io.EOF) {
				t.Errorf("ReadAt over the end: %d %v", n, err)
			}
			if n, err := file.ReadAt(buf, 99); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("ReadAt beyond the end: %d %v", n, err)
			}
			if _, err := file.ReadAt(buf, -1); err == nil {
				t.Error("ReadAt before the start")
			}
			if n, err := file.Read(buf); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("Read behind what was written: %d %v", n, err)
			}
			must(t, file.Sync())
			info, err := file.Stat()
			if err != nil || info.Size() != 11 || info.Name() != "a" || info.Mode() != 0o640 || info.IsDir() {
				t.Errorf("Stat: %v %v", info, err)
			}
			// An open file outlives its name.
			must(t, f.Remove(a))
			if n, err := file.ReadAt(buf, 0); n != 5 || err != nil {
				t.Errorf("read of a removed file: %d %v", n, err)
			}
			must(t, file.Close())
			for what, err := range map[string]error{"close": file.Close(), "sync": file.Sync(), "write": second(file.Write([]byte("x"))), "read": second(file.Read(buf))} {
				if !errors.Is(err, fs.ErrClosed) {
					t.Errorf("%s of a closed file: %v", what, err)
				}
			}

			write(t, f, a, "12345")
			file, err = f.OpenFile(a, os.O_WRONLY, 0)
			must(t, err)
			if _, err := file.Read(buf); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("read of a file opened for writing: %v", err)
			}
			must(t, second(file.Write([]byte("ab"))))
			must(t, file.Close())
			file, err = f.OpenFile(a, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			must(t, second(file.Write([]byte("67"))))
			must(t, file.Close())
			if got := read(f, a); got != "ab34567" {
				t.Errorf("content %q", got)
			}
			file, err = f.OpenFile(a, os.O_RDONLY, 0)
			must(t, err)
			if err := second(file.Write([]byte("x"))); err == nil {
				t.Error("write to a file opened for reading")
			}
			must(t, file.Close())
			write(t, f, a, "")
			if got := read(f, a); got != "" {
				t.Errorf("after truncation: %q", got)
			}
		})
	}
}

func second(_ int, err error) error { return err }

func TestNames(t *testing.T) {
	for name, f := range both(t) {
		t.Run(name, func(t *testing.T) {
			at := func(parts ...string) string { return path.Join(append([]string{f.dir}, parts...)...) }
			must(t, f.MkdirAll(at("d", "e"), 0o755))
			must(t, f.MkdirAll(at("d", "e"), 0o755))
			write(t, f, at("d", "x"), "x")
			write(t, f, at("y"), "y")
			expect := func(what string, err, want error) {
				t.Helper()
				if want == nil && err != nil || !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			}
			open := func(name string, flag int) error {
				file, err := f.OpenFile(name, flag, 0o600)
				if err == nil {
					file.Close()
				}
				return err
			}
			expect("open of nothing", open(at("none"), os.O_RDONLY), fs.ErrNotExist)
			expect("open below nothing", open(at("none", "x"), os.O_CREATE|os.O_WRONLY), fs.ErrNotExist)
			expect("open below a file", open(at("y", "x"), os.O_CREATE|os.O_WRONLY), syscall.ENOTDIR)
			expect("exclusive", open(at("y"), os.O_CREATE|os.O_EXCL|os.O_WRONLY), fs.ErrExist)
			expect("exclusive on a folder", open(at("d"), os.O_CREATE|os.O_EXCL|os.O_WRONLY), fs.ErrExist)
			expect("write of a folder", open(at("d"), os.O_WRONLY), syscall.EISDIR)
			expect("a file as folder", open(at("y"), os.O_RDONLY|syscall.O_DIRECTORY), syscall.ENOTDIR)
			expect("mkdir below a file", f.MkdirAll(at("y", "z"), 0o755), syscall.ENOTDIR)
			expect("mkdir on a file", f.MkdirAll(at("y"), 0o755), syscall.ENOTDIR)
			expect("link to a taken name", f.Link(at("y"), at("d", "x")), fs.ErrExist)
			expect("link of nothing", f.Link(at("none"), at("z")), fs.ErrNotExist)
			expect("rename of nothing", f.Rename(at("none"), at("z")), fs.ErrNotExist)
			expect("rename over a folder", f.Rename(at("y"), at("d")), fs.ErrExist)
			expect("rename of a folder over a file", f.Rename(at("d", "e"), at("y")), syscall.ENOTDIR)
			expect("rename into itself", f.Rename(at("d"), at("d", "e", "f")), syscall.EINVAL)
			expect("remove of nothing", f.Remove(at("none")), fs.ErrNotExist)
			expect("remove of a full folder", f.Remove(at("d")), syscall.ENOTEMPTY)
			expect("RemoveAll of nothing", f.RemoveAll(at("none")), nil)
			expect("SyncDir", f.SyncDir(at("d")), nil)
			expect("SyncDir of nothing", f.SyncDir(at("none")), fs.ErrNotExist)
			expect("SyncDir of a file", f.SyncDir(at("y")), syscall.ENOTDIR)
			_, err := f.Stat(at("none"))
			expect("stat", err, fs.ErrNotExist)
			_, err = f.ReadDir(at("none"))
			expect("readdir", err, fs.ErrNotExist)
			_, err = f.ReadDir(at("y"))
			expect("readdir of a file", err, syscall.ENOTDIR)
			if _, err := ReadFile(f, at("d"), 100); err == nil {
				t.Error("a folder was read as a file")
			}
			if _, err := ReadFile(f, at("y"), 0); !errors.Is(err, ErrTooLarge) {
				t.Errorf("over the limit: %v", err)
			}

			must(t, f.Link(at("y"), at("d", "y")))
			must(t, f.Rename(at("y"), at("d", "x")))
			file, err := f.OpenFile(at("d", "y"), os.O_WRONLY, 0)
			must(t, err)
			must(t, second(file.Write([]byte("Y"))))
			must(t, file.Close())
			if got := read(f, at("d", "x")); got != "Y" {
				t.Errorf("through the other name: %q", got)
			}
			list, err := f.ReadDir(at("d"))
			must(t, err)
			if got := fmt.Sprint(list[0].Name(), list[0].IsDir(), list[1].Name(), list[1].IsDir(), list[2].Name(), len(list)); got != fmt.Sprint("e", true, "x", false, "y", 3) {
				t.Errorf("listing: %s", got)
			}
			must(t, f.RemoveAll(at("d")))
			if _, err := f.Lstat(at("d")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after RemoveAll: %v", err)
			}
		})
	}
}

// TestMemIsLikeOS does random operations on both and compares every answer.
func TestMemIsLikeOS(t *testing.T) {
	top := t.TempDir()
	count := 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		real := rooted{OS(), path.Join(top, fmt.Sprint(count))}
		mem := rooted{NewMem(), "/w"}
		for _, f := range []rooted{real, mem} {
			if err := f.MkdirAll(f.dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		name := rapid.SampledFrom([]string{"a", "b", "d/a", "d/b", "d", "d/e/a", "d/e", "a/x"})
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			op := rapid.SampledFrom([]string{"write", "append", "create", "rename", "link", "remove", "removeall", "mkdir", "list", "read", "stat"}).Draw(t, "op")
			x, y := name.Draw(t, "x"), name.Draw(t, "y")
			if got, want := act(mem, op, x, y), act(real, op, x, y); got != want {
				t.Fatalf("%s %s %s: memory says %s, the system %s", op, x, y, got, want)
			}
		}
		if got, want := tree(mem, ""), tree(real, ""); got != want {
			t.Fatalf("memory holds\n%s\nthe system\n%s", got, want)
		}
	})
}

func class(err error) string {
	for _, e := range []error{nil, fs.ErrNotExist, fs.ErrExist, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.EINVAL, syscall.EPERM} {
		if errors.Is(err, e) {
			return fmt.Sprint(e)
		}
	}
	return err.Error()
}

func act(f rooted, op, x, y string) string {
	name := path.Join(f.dir, x)
	put := func(flag int) string {
		file, err := f.OpenFile(name, flag, 0o600)
		if err != nil {
			return class(err)
		}
		defer file.Close()
		_, err = file.Write([]byte(y))
		return class(err)
	}
	switch op {
	case "write":
		return put(os.O_WRONLY | os.O_CREATE | os.O_TRUNC)
	case "append":
		return put(os.O_WRONLY | os.O_APPEND)
	case "create":
		return put(os.O_RDWR | os.O_CREATE | os.O_EXCL)
	case "rename":
		return class(f.Rename(name, path.Join(f.dir, y)))
	case "link":
		return class(f.Link(name, path.Join(f.dir, y)))
	case "remove":
		return class(f.Remove(name))
	case "removeall":
		return class(f.RemoveAll(name))
	case "mkdir":
		return class(f.MkdirAll(name, 0o755))
	case "list":
		list, err := f.ReadDir(name)
		return fmt.Sprint(len(list), class(err))
	case "stat":
		info, err := f.Lstat(name)
		if err != nil {
			return class(err)
		}
		if info.IsDir() {
			return info.Name() + " folder"
		}
		return fmt.Sprint(info.Name(), info.Size(), info.Mode())
	}
	b, err := ReadFile(f, name, 1<<20)
	if err != nil && class(err) == err.Error() {
		return "other"
	}
	return string(b) + class(err)
}

func tree(f rooted, at string) string {
	list, err := f.ReadDir(path.Join(f.dir, at))
	if err != nil {
		return err.Error()
	}
	out := ""
	for _, e := range list {
		name := path.Join(at, e.Name())
		if e.IsDir() {
			out += name + "/\n" + tree(f, name)
		} else {
			out += name + " " + read(f, path.Join(f.dir, name)) + "\n"
		}
	}
	return out
}
