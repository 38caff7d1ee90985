package shim

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// stayResident keeps of the shim's program in memory what it uses. The code that
// connects to the bus, and what only a start needs, is mapped in by the start all the same,
// so it is given back then, and each time after it was used. The kernel reads it from the
// page cache again when it is called.
func stayResident() {
	debug.SetGCPercent(25)
	debug.FreeOSMemory() // first: a collection reads much of the program
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range bytes.Lines(maps) {
		// 00400000-0064f000 r-xp 00000000 fd:00 1234 /path
		span, rest, _ := bytes.Cut(line, []byte(" "))
		mode, rest, _ := bytes.Cut(rest, []byte(" "))
		if !bytes.HasSuffix(bytes.TrimSuffix(rest, []byte("\n")), []byte(" "+exe)) {
			continue
		}
		low, high, _ := bytes.Cut(span, []byte("-"))
		from, err1 := strconv.ParseUint(string(low), 16, 64)
		to, err2 := strconv.ParseUint(string(high), 16, 64)
		// Only what was never written to: the file holds it.
		if m := string(mode); err1 == nil && err2 == nil && from < to && (m == "r-xp" || m == "r--p") {
			// One touch must not map 2 MB again where the page cache holds the file in huge pages.
			for _, advice := range []uintptr{unix.MADV_NOHUGEPAGE, unix.MADV_DONTNEED} {
				_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), advice)
			}
		}
	}
}
