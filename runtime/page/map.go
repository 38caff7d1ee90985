package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets of the fields; see the layout above.
const (
	offGeneration   = 8
	offStep         = 16
	offTime         = 24
	offCalls        = 32
	offPhase        = 40
	offProposal     = 64
	offTarget       = 72
	offVerdict      = 80
	offAgreed       = 88
	offAcknowledged = 96
	offStop         = 104
	offStopBy       = 112
	offSettled      = 120
)

var magic = [4]byte{'T', 'R', 'P', 'G'}

// ErrBad: the file is no progress page of this version. The text says why.
var ErrBad = errors.New("page: not a progress page")

// Page is a mapped page. Every field is read and written atomically; methods may be
// called from any goroutine, but none after Close.
//
// The rank that maps the same memory may run any code: whatever the shim reads here
// is a claim, and what the shim has written may have been overwritten.
type Page struct {
	mem     []byte
	path    string
	close   sync.Once
	spoiled atomic.Bool
}

// Create makes the file and maps it, for the rank of the given generation to open. An
// existing file, of whatever kind, is an error that matches fs.ErrExist: a page is
// never shared between generations (P3).
func Create(path string, generation uint64) (*Page, error) {
	// Mode 0600: only the user that both shim and rank run as may map it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("page: create: %w", err)
	}
	defer f.Close()
	p, err := prepare(f, path, generation)
	if err != nil {
		_ = os.Remove(path) // the error that counts is the first
		return nil, err
	}
	return p, nil
}

func prepare(f *os.File, path string, generation uint64) (*Page, error) {
	// Blocks now, so that a full disk is an error here and not SIGBUS in a rank.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, Size); err != nil {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("page: reserve %d bytes for %s: %w", Size, path, err)
		}
		if _, err := f.WriteAt(make([]byte, Size), 0); err != nil {
			return nil, fmt.Errorf("page: write %s: %w", path, err)
		}
	}
	p, err := mapFile(f, path)
	if err != nil {
		return nil, err
	}
	p.store(offGeneration, generation)
	p.store(offStep, ^uint64(0)) // -1: no step yet
	// Magic and version last: whoever sees them sees a complete page.
	var head [8]byte
	copy(head[:], magic[:])
	binary.LittleEndian.PutUint32(head[4:], Version)
	p.store(0, binary.NativeEndian.Uint64(head[:]))
	return p, nil
}

// Open maps an existing page. ErrBad: it is a symbolic link, not a regular file, of
// another size, magic or version.
func Open(path string) (*Page, error) {
	// O_NONBLOCK, because opening a pipe would wait for its other end.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%w: %s is a symbolic link", ErrBad, path)
		}
		return nil, fmt.Errorf("page: open: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("page: open: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrBad, path)
	}
	if info.Size() != Size {
		return nil, fmt.Errorf("%w: %s has %d bytes, want %d", ErrBad, path, info.Size(), Size)
	}
	p, err := mapFile(f, path)
	if err != nil {
		return nil, err
	}
	var head [8]byte
	binary.NativeEndian.PutUint64(head[:], p.load(0))
	if [4]byte(head[:4]) != magic {
		p.Close()
		return nil, fmt.Errorf("%w: %s starts with %q", ErrBad, path, head[:4])
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v != Version {
		p.Close()
		return nil, fmt.Errorf("%w: %s has version %d, this build speaks %d", ErrBad, path, v, Version)
	}
	return p, nil
}

func mapFile(f *os.File, path string) (*Page, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("page: map %s: %w", path, err)
	}
	return &Page{mem: mem, path: path}, nil
}

// Close unmaps the page; the file stays. Only the first call does anything.
func (p *Page) Close() error {
	var err error
	p.close.Do(func() { err = unix.Munmap(p.mem) })
	return err
}

// Path is where the page lives.
func (p *Page) Path() string { return p.path }

// word is the field at off: offsets are multiples of 8 within the page, and a mapping
// is aligned to pages, so that the pointer is aligned for atomics.
func (p *Page) word(off int) *uint64 {
	return (*uint64)(unsafe.Pointer(&p.mem[off])) //nolint:gosec // audited: aligned and within the mapping, see above
}

func (p *Page) load(off int) (v uint64) {
	defer p.guard(debug.SetPanicOnFault(true))
	return atomic.LoadUint64(p.word(off))
}

func (p *Page) store(off int, v uint64) {
	defer p.guard(debug.SetPanicOnFault(true))
	atomic.StoreUint64(p.word(off), v)
}

// guard turns the fault of a page whose file the other side has cut short into
// Spoiled; otherwise a rank could end its shim by one truncate.
func (p *Page) guard(old bool) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		if _, fault := r.(interface{ Addr() uintptr }); !fault {
			panic(r)
		}
		p.spoiled.Store(true)
	}
}

// Spoiled reports whether the page's memory was found gone; its fields then read as
// zero (Step as -1) and writes are lost.
func (p *Page) Spoiled() bool { return p.spoiled.Load() }

// Monotonic is CLOCK_MONOTONIC in ns, the clock of the page's times; Python's
// time.monotonic_ns reads the same one.
func Monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0 // no Linux is without this clock
	}
	return ts.Nano()
}

// Age is how long ago the rank reported last; false when it has not.
func (p *Page) Age() (time.Duration, bool) {
	t := p.Time()
	if t == 0 {
		return 0, false
	}
	return time.Duration(max(0, Monotonic()-t)), true
}
