// Package unit holds the typed integers that every other package counts with:
// milli-CPU, bytes and durations, with their parsers and printers. It may import
// only the standard library; anything that knows about jobs or nodes lives elsewhere.
//
// Quantities are integers everywhere, because sums of them must balance exactly
// (P8). None of the types implements encoding.TextMarshaler: the codec of
// runtime/wire would prefer it and send text where an integer does.
package unit

import "time"

// MilliCPU is thousandths of one CPU. JSON writes it as an integer of thousandths
// and also reads a string in ParseMilliCPU's form ("2", "1500m").
type MilliCPU int64

// Bytes is a number of bytes. JSON writes it as an integer and also reads a string
// in ParseBytes' form ("80GiB").
type Bytes int64

// Duration is a time.Duration that JSON writes and reads as a string ("90s").
type Duration time.Duration

// D converts to the standard type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Sizes in bytes.
const (
	KiB Bytes = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
	PiB
)

// Error says which text is no quantity, why, and what is accepted.
type Error struct {
	Kind     string // "CPU amount", "size" or "duration"
	Input    string // at most 64 bytes of it
	Why      string
	Accepted string
}

// Error implements error.
func (e *Error) Error() string {
	return "\"" + e.Input + "\" is no " + e.Kind + ": " + e.Why + "; accepted: " + e.Accepted
}
