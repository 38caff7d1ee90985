package embed

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"testing"
)

// The answer must follow the folder: with a shim beside this file its very bytes,
// without one a clear false and no empty file that would be executed.
func TestShimFollowsTheFolder(t *testing.T) {
	want, err := os.ReadFile(shimFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	got, ok := Shim()
	if built := len(want) > 0; ok != built {
		t.Fatalf("Shim() ok = %v, but a built shim in the folder = %v", ok, built)
	}
	if !ok {
		return
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("embedded shim differs from the file: %d and %d bytes", len(got), len(want))
	}
	f, err := elf.NewFile(bytes.NewReader(got))
	if err != nil {
		t.Fatalf("embedded shim is not an ELF executable: %v", err)
	}
	if _, err := f.DynamicSymbols(); !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatalf("embedded shim is dynamically linked (%v); it must run on any libc", err)
	}
}

func TestPlaceholderIsCommitted(t *testing.T) {
	if _, err := files.ReadFile("placeholder.txt"); err != nil {
		t.Fatalf("the placeholder keeps a plain go build working: %v", err)
	}
}
