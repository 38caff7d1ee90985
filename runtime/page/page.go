// Package page is the progress page: 4,096 bytes of shared memory that a rank maps
// and writes on every step, and its shim reads. A step report costs one store, no
// system call. The layout is fixed here for Go and in sdk/python/troupe/page.py for
// Python, and both are tested against each other.
package page

// Layout of version 1, little-endian, every field 8 bytes and aligned; a writer
// stores one field at a time and the time last. A pair (proposal and target, verdict
// and agreed) is written as number 0, value, number, and read as number, value, number
// again: when the two differ, there is none now.
//
//	  0  magic "TRPG" (4 bytes), version uint32
//	  8  generation uint64        written by the shim before the rank starts
//	 16  step int64               newest finished step, -1 before the first
//	 24  time int64               CLOCK_MONOTONIC ns of that report
//	 32  calls uint64             calls of should_checkpoint so far
//	 40  phase int64              0, or CLOCK_MONOTONIC ns until which a phase may last
//	 64  proposal uint64          number of the open proposal, 0 none   (shim)
//	 72  target int64             its step T                            (shim)
//	 80  verdict uint64           number of the last decided proposal   (shim)
//	 88  agreed int64             0 dropped, 1 save, 2 save and end     (shim)
//	 96  acknowledged uint64      number the rank has bound itself to   (rank)
//	104  stop uint64              1: should_stop answers true           (shim)
//	112  stopBy int64             0, or CLOCK_MONOTONIC ns of the kill  (shim)
//	120  settled uint64           newest with nothing left to do        (rank)
const (
	Size    = 4096
	Version = 1
)
