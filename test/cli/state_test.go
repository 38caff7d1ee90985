package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// mounted is a small file system of its own at a folder below the home; skip says so
// where this kernel or user may not mount.
func mounted(t *testing.T, h *home, options string, flags uintptr) string {
	t.Helper()
	dir := filepath.Join(h.dir, "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENODEV) {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if flags != 0 {
		if err := syscall.Mount("", dir, "", flags|syscall.MS_REMOUNT, options); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// refused checks that `up` in both forms says that the system refused the folder, and
// that nothing of it lives on.
func refused(t *testing.T, h *home, state, words string) {
	t.Helper()
	for _, args := range [][]string{{"up", "-d"}, {"up"}} {
		r := h.troupe(append(args, "--port", "0", "--state", state)...)
		if r.code != api.ExitOS || !strings.Contains(r.errout, words) || !strings.Contains(r.errout, "help: ") {
			t.Errorf("want exit %d with %q and a help: %v", api.ExitOS, words, r)
		}
		if !strings.Contains(r.errout, state) {
			t.Errorf("the folder is not named: %v", r)
		}
	}
	if r := h.troupe("head", "init", "--state", filepath.Join(state, "head")); r.code != api.ExitOS {
		t.Errorf("%v", r)
	}
	gone(t, h.dir)
}

func TestStateFolderReadOnly(t *testing.T) {
	h := newHome(t)
	dir := mounted(t, h, "size=1m", syscall.MS_RDONLY)
	refused(t, h, filepath.Join(dir, "state"), "read-only")
	refused(t, h, dir, "read-only")
}

func TestStateFolderFull(t *testing.T) {
	h := newHome(t)
	dir := mounted(t, h, "size=64k", 0)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); !errors.Is(err, syscall.ENOSPC); { // however it rounds its size
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			_, err = f.Write(make([]byte, 4096))
			_ = f.Close()
		}
	}
	refused(t, h, state, "no space left")
}

func TestStateFolderIsAFile(t *testing.T) {
	h := newHome(t)
	refused(t, h, h.write("file", ""), "not a directory")
}

func TestStateFolderOfSomebodyElse(t *testing.T) {
	if os.Getuid() == 0 {
		// Root may write anywhere; what a user meets is shown by the read-only disk.
		return
	}
	h := newHome(t)
	dir := filepath.Join(h.dir, "closed")
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	refused(t, h, filepath.Join(dir, "state"), "permission denied")
}
