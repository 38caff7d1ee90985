package consensus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/raft-wal/types"
)

// raft-wal reads its newest segment until something does not look like a frame and
// takes that for the end: what a torn write leaves. A damaged frame in the middle looks
// the same, and everything behind it would be gone without a word. But each batch is
// durable before the next one is written, so nothing whole can stand behind a torn one:
// a whole batch there proves damage. Damage to the very last batch cannot be told from
// a torn write in this way.

// The layout of a segment: a header, then frames of 8 bytes and a padded payload. The
// four bytes from 4 on are the payload's length, or, in a commit frame, which has no
// payload, the crc32c of everything since the commit frame before it.
const (
	segmentHeader = 32
	frameHeader   = 8
	frameEntry    = 1
	frameIndex    = 2
	frameCommit   = 3
	// maxCandidates bounds the search behind the end.
	maxCandidates = 256
)

// checkTail reports damage that raft-wal would take for the end of the log in dir. It
// must run before raft-wal opens the log, which writes over what is behind the end.
func checkTail(vfs types.VFS, dir string) error {
	names, err := vfs.ListDir(dir)
	if err != nil {
		return storageError("list", dir, err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".wal") })
	if len(names) == 0 {
		return nil
	}
	name := slices.Max(names)
	f, err := vfs.OpenReader(dir, name)
	if err != nil {
		return storageError("open", name, err)
	}
	defer f.Close()
	end, commit, entries, err := walk(f)
	if err != nil {
		return storageError("read", name, err)
	}
	// From the last commit frame on, not from the end: a damaged length leads anywhere.
	rest, err := io.ReadAll(&nonZero{r: io.NewSectionReader(f, commit, 1<<62)})
	if err != nil {
		return storageError("read", name, err)
	}
	if !wholeBatch(rest, end-commit) {
		return nil
	}
	var base uint64
	_, _ = fmt.Sscanf(name, "%d-", &base)
	return &DamagedLogError{
		Index:  base + entries,
		Reason: fmt.Sprintf("%s does not go on at byte %d, but whole entries stand behind it", name, end),
	}
}

// walk reads frames from the beginning and returns where that ends, where the last
// commit frame ends, and how many entries were met up to there.
func walk(f io.ReaderAt) (end, commit int64, entries uint64, err error) {
	r := bufio.NewReaderSize(io.NewSectionReader(f, segmentHeader, 1<<62), 64<<10)
	end, commit = segmentHeader, segmentHeader
	for met := uint64(0); ; {
		h, err := r.Peek(frameHeader)
		if errors.Is(err, io.EOF) {
			return end, commit, entries, nil
		}
		if err != nil {
			return 0, 0, 0, err
		}
		kind, size := h[0], int64(frameHeader)
		switch kind {
		case frameEntry, frameIndex:
			size += (int64(binary.LittleEndian.Uint32(h[4:])) + frameHeader - 1) &^ (frameHeader - 1)
		case frameCommit:
		default:
			return end, commit, entries, nil
		}
		switch n, err := io.CopyN(io.Discard, r, size); {
		case errors.Is(err, io.EOF), err == nil && n < size:
			return end, commit, entries, nil // its length leads beyond the file
		case err != nil:
			return 0, 0, 0, err
		}
		end += size
		switch kind {
		case frameEntry:
			met++
		case frameCommit:
			commit, entries = end, met
		}
	}
}

// wholeBatch reports whether frames that end in a commit frame with the right sum stand
// anywhere in b, which begins behind the last commit frame; bad is where the frames end.
func wholeBatch(b []byte, bad int64) bool {
	// A batch begins behind a commit frame; the damaged frame itself may have been one.
	var starts []int
	if bad+frameHeader < int64(len(b)) {
		starts = append(starts, int(bad)+frameHeader)
	}
	for at := 0; at+frameHeader <= len(b) && len(starts) < maxCandidates; at += frameHeader {
		if at != int(bad) && b[at] == frameCommit && b[at+1] == 0 && b[at+2] == 0 && b[at+3] == 0 {
			starts = append(starts, at+frameHeader)
		}
	}
	for i, from := range starts {
		sum, at := uint32(0), from
		for _, next := range starts[i+1:] {
			commit := next - frameHeader
			if commit <= from {
				continue
			}
			sum = crc32.Update(sum, castagnoli, b[at:commit])
			at = commit
			if sum == binary.LittleEndian.Uint32(b[commit+4:]) {
				return true
			}
		}
	}
	return false
}

// nonZero passes a reader on as far as it holds anything but zeros. A segment is
// allocated whole, and nearly all of it is usually zeros, which need no memory.
type nonZero struct {
	r     io.Reader
	zeros int64 // held back
	next  []byte
	buf   [32 << 10]byte
	eof   bool
}

func (z *nonZero) Read(p []byte) (int, error) {
	for {
		if len(z.next) > 0 {
			if z.zeros > 0 {
				n := min(int64(len(p)), z.zeros)
				clear(p[:n])
				z.zeros -= n
				return int(n), nil
			}
			n := copy(p, z.next)
			z.next = z.next[n:]
			return n, nil
		}
		if z.eof {
			return 0, io.EOF
		}
		n, err := z.r.Read(z.buf[:])
		if errors.Is(err, io.EOF) {
			z.eof = true
		} else if err != nil {
			return 0, err
		}
		kept := len(bytes.TrimRight(z.buf[:n], "\x00"))
		if kept == 0 {
			z.zeros += int64(n)
			continue
		}
		z.next = z.buf[:n]
	}
}
