package pack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// made writes a tar of headers; a regular entry with size 0 gets four bytes.
func made(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		content := "data"
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte(content), int(h.Size/4))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// resize changes the size that the first header of a tar says, and its checksum.
func resize(raw []byte, size int64) []byte {
	h := bytes.Clone(raw)
	copy(h[124:136], fmt.Sprintf("%011o\x00", size))
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

func TestUnpackRefuses(t *testing.T) {
	dir := tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}
	many := make([]tar.Header, 11)
	for i := range many {
		many[i] = tar.Header{Name: fmt.Sprintf("f%02d", i)}
	}
	good := made(t, tar.Header{Name: "f"})
	for _, c := range []struct {
		name string
		raw  []byte
		want error
		text string // the error names the entry and what is wrong, or the limit
	}{
		{"climbs", made(t, tar.Header{Name: "../f"}), ErrEntry, `"../f" leads out`},
		{"climbs inside", made(t, dir, tar.Header{Name: "d/../../f"}), ErrEntry, "leads out"},
		{"absolute", made(t, tar.Header{Name: "/tmp/f"}), ErrEntry, "absolute path"},
		{"dot", made(t, tar.Header{Name: "./f"}), ErrEntry, "shortest form"},
		{"two slashes", made(t, dir, tar.Header{Name: "d//f"}), ErrEntry, "shortest form"},
		{"long part", made(t, tar.Header{Name: strings.Repeat("x", 256)}), ErrEntry, "longer than 255 bytes"},
		{"long name", made(t, tar.Header{Name: strings.Repeat("x/", 2100) + "f"}), ErrEntry, "longer than 4096 bytes"},
		{"no UTF-8", made(t, tar.Header{Name: "a\xffb", Format: tar.FormatGNU}), ErrEntry, "not UTF-8"},
		{"no folder", made(t, tar.Header{Name: "d/f"}), ErrEntry, "no folder of the package"},
		{"in a file", made(t, tar.Header{Name: "d"}, tar.Header{Name: "d/f"}), ErrEntry, "no folder of the package"},
		{"absolute link", made(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}), ErrEntry, "absolute path"},
		{"link out", made(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x"}), ErrEntry, "outside of the folder"},
		{"link out deeper", made(t, dir, tar.Header{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../../x"}), ErrEntry, "outside of the folder"},
		{"link up after down", made(t, dir, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/../.."}), ErrEntry, "goes up again"},
		{
			"two links that leave together",
			made(t, dir, tar.Header{Name: "d/top", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/top/../x"}),
			ErrEntry, "goes up again",
		},
		{"empty link", made(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ""}), ErrEntry, "link to nothing"},
		{"write through a link", made(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d"}, tar.Header{Name: "l/f"}), ErrEntry, "no folder of the package"},
		{"hard link", made(t, tar.Header{Name: "f"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "f"}), ErrEntry, "hard link"},
		{"hard link out", made(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), ErrEntry, "hard link"},
		{"character device", made(t, tar.Header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}), ErrEntry, "device"},
		{"block device", made(t, tar.Header{Name: "b", Typeflag: tar.TypeBlock}), ErrEntry, "device"},
		{"pipe", made(t, tar.Header{Name: "p", Typeflag: tar.TypeFifo}), ErrEntry, "pipe"},
		{"setuid", made(t, tar.Header{Name: "f", Mode: 0o4755}), ErrEntry, "setuid"},
		{"setgid", made(t, tar.Header{Name: "f", Mode: 0o2755}), ErrEntry, "setuid, setgid"},
		{"sticky folder", made(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o1777}), ErrEntry, "sticky"},
		{"twice", made(t, tar.Header{Name: "f"}, tar.Header{Name: "f"}), ErrEntry, `"f" is there twice`},
		{"file and folder", made(t, tar.Header{Name: "d"}, dir), ErrEntry, `"d" is there twice`},
		{"case", made(t, tar.Header{Name: "File"}, tar.Header{Name: "fILE"}), ErrEntry, "differ only in case"},
		{"case of another script", made(t, tar.Header{Name: "Σ"}, tar.Header{Name: "ς"}), ErrEntry, "differ only in case"},
		{"extended attribute", made(t, tar.Header{Name: "f", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}), ErrEntry, `record "SCHILY`},
		{"entries", made(t, many...), ErrLimit, "more than 10 files, folders and links"},
		{"bytes", made(t, tar.Header{Name: "f", Size: 1000}, tar.Header{Name: "g", Size: 1000}), ErrLimit, `"g" would bring what is unpacked above 1.5 KiB`},
		{"lies upward", resize(good[:1024], 1500), ErrDamaged, `at "f"`},
		{"lies downward", resize(made(t, tar.Header{Name: "f", Size: 1024}), 4), ErrDamaged, "invalid tar header"},
		{"ends early", good[:512+2], ErrDamaged, "unexpected EOF"},
		{"goes on", append(bytes.Clone(good), "more"...), ErrDamaged, "something follows"},
		{"no tar", bytes.Repeat([]byte("no tar"), 500), ErrDamaged, "invalid tar header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			parent := t.TempDir()
			err := unpackTar(t.Context(), bytes.NewReader(c.raw), filepath.Join(parent, "out"), Limits{Bytes: 1536, Entries: 10})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v\nwant %q", err, c.text)
			}
			if left, _ := os.ReadDir(parent); len(left) > 0 {
				t.Errorf("%s was left behind", left[0].Name())
			}
		})
	}
}

// A small file that unpacks to far more than its entries say ends at the limit.
func TestUnpackEndsABomb(t *testing.T) {
	squeeze := func(raw ...[]byte) []byte {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range raw {
			if _, err := z.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	zeros := make([]byte, 8<<20)
	for name, raw := range map[string][]byte{
		"one file":      squeeze(resize(made(t, tar.Header{Name: "f"})[:1024], 1<<30), zeros, zeros),
		"after its end": squeeze(made(t, tar.Header{Name: "f"}), zeros, zeros),
	} {
		parent := t.TempDir()
		err := Unpack(t.Context(), bytes.NewReader(raw), filepath.Join(parent, "out"), Limits{Bytes: 1 << 20, Entries: 10})
		if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "1.0 MiB") || len(raw) > 1<<16 {
			t.Errorf("%s, %d bytes: %v", name, len(raw), err)
		}
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Errorf("%s: something was left behind", name)
		}
	}
	if err := Unpack(t.Context(), strings.NewReader("no archive"), filepath.Join(t.TempDir(), "out"), Limits{}); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := filepath.Join(t.TempDir(), "out")
	if err := Unpack(ctx, bytes.NewReader(squeeze(made(t, tar.Header{Name: "f"}))), out, Limits{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something was left behind")
	}
}

// Whatever the bytes are: nothing outside of the folder changes, nothing inside it leads
// out, and after an error there is no folder.
func FuzzUnpack(f *testing.F) {
	f.Add(made(f, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "d/f"}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/f"}))
	f.Add(made(f, tar.Header{Name: "../f"}))
	f.Add(made(f, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l/f"}))
	f.Add(made(f, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}))
	f.Add(made(f, tar.Header{Name: strings.Repeat("long", 60)}))
	f.Add(resize(made(f, tar.Header{Name: "f"}), 9999))
	limits := Limits{Bytes: 64 << 10, Entries: 50}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for name, unpack := range map[string]func(dir string) error{
			"tar":     func(dir string) error { return unpackTar(t.Context(), bytes.NewReader(raw), dir, limits) },
			"archive": func(dir string) error { return Unpack(t.Context(), bytes.NewReader(raw), dir, limits) },
		} {
			parent := t.TempDir()
			out := filepath.Join(parent, "out")
			err := unpack(out)
			if list, _ := os.ReadDir(parent); len(list) > 1 || err != nil && len(list) > 0 {
				t.Fatalf("%s: %v, and the folder beside holds %v", name, err, list)
			}
			if err != nil {
				if !errors.Is(err, ErrEntry) && !errors.Is(err, ErrLimit) && !errors.Is(err, ErrDamaged) {
					t.Fatalf("%s: an error of no kind: %v", name, err)
				}
				continue
			}
			checkInside(t, out, limits)
		}
	})
}

func checkInside(t *testing.T, out string, limits Limits) {
	t.Helper()
	entries, size := 0, int64(0)
	err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == out {
			return err
		}
		entries++
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			to, err := filepath.EvalSymlinks(path)
			if err == nil && to != out && !strings.HasPrefix(to, out+"/") {
				return fmt.Errorf("%s leads to %s", path, to)
			}
		case !mode.IsDir() && !mode.IsRegular(), mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
			return fmt.Errorf("%s has the mode %v", path, mode)
		case mode.IsRegular():
			size += info.Size()
		}
		return nil
	})
	if err != nil || entries > limits.Entries || size > limits.Bytes {
		t.Fatalf("%d entries, %d bytes: %v", entries, size, err)
	}
}
