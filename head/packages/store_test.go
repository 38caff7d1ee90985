package packages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

// box is a store on a disk in memory with a clock that moves with each look.
type box struct {
	*Store
	t    *testing.T
	fs   disk.FS
	now  time.Time
	live map[string]bool
}

func open(t *testing.T, fs disk.FS, quota int64) *box {
	t.Helper()
	b := &box{t: t, fs: fs, now: time.Now(), live: map[string]bool{}}
	s, err := Open(Options{FS: fs, Dir: "/p", Max: 100, Quota: quota, Now: func() time.Time {
		b.now = b.now.Add(time.Second)
		return b.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.Store = s
	return b
}

func hashOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func (b *box) put(content string) error {
	return b.Put(b.t.Context(), hashOf(content), int64(len(content)), strings.NewReader(content), func() map[string]bool { return b.live })
}

func (b *box) has(content string) bool {
	size, err := b.Has(b.t.Context(), hashOf(content))
	if err != nil && !errors.Is(err, ErrNone) {
		b.t.Fatal(err)
	}
	return err == nil && size == int64(len(content))
}

func (b *box) files() int {
	list, err := b.fs.ReadDir("/p")
	if err != nil {
		b.t.Fatal(err)
	}
	return len(list)
}

func TestPutAndRead(t *testing.T) {
	b := open(t, disk.NewMem(), 1000)
	if b.has("content") {
		t.Error("has what nobody sent")
	}
	if err := b.put("content"); err != nil {
		t.Fatal(err)
	}
	// Again: nothing is read of what is sent.
	err := b.Put(t.Context(), hashOf("content"), 7, errReader{}, func() map[string]bool { return nil })
	if err != nil || !b.has("content") || b.files() != 1 {
		t.Errorf("%v, %d files", err, b.files())
	}
	var got []byte
	for len(got) < 7 {
		piece, size, err := b.Read(hashOf("content"), int64(len(got)), 3)
		if err != nil || size != 7 || len(piece) == 0 {
			t.Fatal(piece, size, err)
		}
		got = append(got, piece...)
	}
	if string(got) != "content" {
		t.Errorf("%q", got)
	}
	if _, _, err := b.Read(hashOf("content"), 8, 3); err == nil {
		t.Error("read behind the end")
	}
	if _, _, err := b.Read(hashOf("other"), 0, 3); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("nobody should read this") }

func TestPutRefuses(t *testing.T) {
	none := func() map[string]bool { return nil }
	for _, c := range []struct {
		name, hash string
		size       int64
		body       io.Reader
		want       error
	}{
		{"hash", "abc", 3, strings.NewReader("abc"), ErrHash},
		{"path", strings.Repeat("../x", 16), 3, strings.NewReader("abc"), ErrHash},
		{"upper case", strings.ToUpper(hashOf("abc")), 3, strings.NewReader("abc"), ErrHash},
		{"other content", hashOf("abc"), 3, strings.NewReader("abd"), ErrHash},
		{"shorter", hashOf("abc"), 4, strings.NewReader("abc"), ErrHash},
		{"longer", hashOf("abc"), 3, strings.NewReader("abcd"), ErrHash},
		{"breaks off", hashOf("abc"), 3, io.MultiReader(strings.NewReader("ab"), errReader{}), nil},
		{"empty", hashOf(""), 0, strings.NewReader(""), ErrTooLarge},
		{"too large", hashOf("x"), 101, errReader{}, ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := open(t, disk.NewMem(), 1000)
			err := b.Put(t.Context(), c.hash, c.size, c.body, none)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if b.files() != 0 || b.total != 0 {
				t.Errorf("%d files and %d bytes were left", b.files(), b.total)
			}
		})
	}
}

// The quota takes what was used longest ago, and never what a live job or a submit under
// way needs.
func TestQuota(t *testing.T) {
	b := open(t, disk.NewMem(), 40)
	a, c, d, e := strings.Repeat("a", 10), strings.Repeat("c", 10), strings.Repeat("d", 10), strings.Repeat("e", 20)
	for _, p := range []string{a, c, d} {
		if err := b.put(p); err != nil {
			t.Fatal(err)
		}
	}
	release, err := b.Pin(hashOf(d))
	if err != nil {
		t.Fatal(err)
	}
	b.live[hashOf(c)] = true
	if !b.has(a) { // and so the newest
		t.Fatal("a is not there")
	}
	if err := b.put(e); err != nil {
		t.Fatal(err)
	}
	if b.has(a) || !b.has(c) || !b.has(d) || !b.has(e) {
		t.Errorf("a %v, c %v, d %v, e %v", b.has(a), b.has(c), b.has(d), b.has(e))
	}
	b.live[hashOf(e)] = true
	if err := b.put(strings.Repeat("f", 11)); !errors.Is(err, ErrFull) || !b.has(c) || !b.has(d) || !b.has(e) {
		t.Errorf("all are needed: %v", err)
	}
	release()
	if err := b.put(strings.Repeat("f", 10)); err != nil || b.has(d) {
		t.Errorf("d is free: %v", err)
	}
	if b.files() != 3 {
		t.Errorf("%d files", b.files())
	}
}

func TestQuotaTakesTheLeastRecentlyUsed(t *testing.T) {
	all := []string{"package one", "package two", "package six"}
	for i := range all {
		b := open(t, disk.NewMem(), 33)
		for _, p := range all {
			if err := b.put(p); err != nil {
				t.Fatal(err)
			}
		}
		for j := range 2 { // all but one are used again
			if !b.has(all[(i+1+j)%3]) {
				t.Fatal("a package is gone")
			}
		}
		if err := b.put("package new"); err != nil {
			t.Fatal(err)
		}
		for j, p := range all {
			if b.has(p) == (i == j) {
				t.Errorf("%d is the oldest; %d is there: %v", i, j, i != j)
			}
		}
	}
}

// A head that loses its power at any moment of an upload has the package whole or not at
// all; after the acknowledgement it has it.
func TestCrash(t *testing.T) {
	content := strings.Repeat("0123456789", 9)
	for seed := range uint64(40) {
		mem := disk.NewMem()
		faulty := disk.NewFaulty(mem)
		b := open(t, faulty, 1000)
		var clones []*disk.Mem
		faulty.Before(func(disk.Op, string) { clones = append(clones, mem.CrashClone(seed, 0.5)) })
		if err := b.put(content); err != nil {
			t.Fatal(err)
		}
		faulty.Before(func(disk.Op, string) {})
		for i, m := range append(clones, mem.CrashClone(seed, 0)) {
			after := open(t, m, 1000)
			has := after.has(content)
			if last := i == len(clones); last && !has {
				t.Fatalf("seed %d: lost after the acknowledgement", seed)
			}
			if files := after.files(); has && files != 1 || !has && files != 0 {
				t.Fatalf("seed %d, crash %d of %d: has %v, %d files", seed, i, len(clones), has, files)
			}
		}
	}
}

func TestFaultsAreTold(t *testing.T) {
	for _, op := range []disk.Op{disk.OpOpen, disk.OpWrite, disk.OpSync, disk.OpRename} {
		mem := disk.NewMem()
		faulty := disk.NewFaulty(mem)
		b := open(t, faulty, 1000)
		remove := faulty.Inject(disk.Fault{Op: op, Err: syscall.ENOSPC})
		if err := b.put("content"); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v: %v", op, err)
		}
		remove()
		if b.files() != 0 || b.total != 0 {
			t.Errorf("%v: %d files and %d bytes were left", op, b.files(), b.total)
		}
		if err := b.put("content"); err != nil {
			t.Errorf("%v, then again: %v", op, err)
		}
	}
}

// A file that was damaged while no head ran is not handed out as whole.
func TestDamage(t *testing.T) {
	mem := disk.NewMem()
	if err := open(t, mem, 1000).put("content"); err != nil {
		t.Fatal(err)
	}
	if err := disk.WriteFileAtomic(mem, "/p/"+hashOf("content")+suffix, []byte("c0ntent"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, mem, 1000)
	if b.has("content") || b.files() != 0 {
		t.Error("a damaged package counts as there")
	}
	if err := b.put("content"); err != nil || !b.has("content") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Put(ctx, hashOf("x"), 1, bytes.NewReader([]byte("x")), func() map[string]bool { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat("/p"); err == nil {
		t.Error("the real disk was used")
	}
}
