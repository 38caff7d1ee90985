package unit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// String prints whole CPUs as "2" and anything else as "1500m"; ParseMilliCPU reads
// it back exactly.
func (c MilliCPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// String prints the largest unit of 1024 that divides the size ("80GiB"), bytes
// otherwise ("81920000001"); ParseBytes reads it back exactly.
func (b Bytes) String() string {
	names := [...]string{"", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for i < len(names)-1 && b != 0 && b%1024 == 0 {
		b /= 1024
		i++
	}
	return strconv.FormatInt(int64(b), 10) + names[i]
}

// Human prints the size for people, with one decimal, rounded ("79.6 GiB").
func (b Bytes) Human() string {
	names := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(b), 0
	for i < len(names)-1 && (f >= 1023.95 || f <= -1023.95) {
		f /= 1024
		i++
	}
	if i == 0 {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + names[i]
}

// String prints like time.Duration without zero tails: "10m", "1h30m", "200ms".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalJSON writes thousandths as an integer.
func (c MilliCPU) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(c), 10), nil }

// MarshalJSON writes bytes as an integer.
func (b Bytes) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(b), 10), nil }

// MarshalJSON writes String's form.
func (d Duration) MarshalJSON() ([]byte, error) { return strconv.AppendQuote(nil, d.String()), nil }

// UnmarshalJSON reads an integer of thousandths or a string of CPUs; null leaves c.
func (c *MilliCPU) UnmarshalJSON(data []byte) error {
	return unmarshal(data, c, "CPU amount", acceptedCPU+", or a whole number of thousandths", ParseMilliCPU)
}

// UnmarshalJSON reads an integer of bytes or a string; null leaves b.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	return unmarshal(data, b, "size", acceptedBytes+", or a whole number of bytes", ParseBytes)
}

// UnmarshalJSON reads a string; a number is refused, because it has no unit. null
// leaves d.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) != "null" && !bytes.HasPrefix(data, []byte{'"'}) {
		return fail("duration", string(data), "it is no string", "a string of "+acceptedDuration)
	}
	return unmarshal(data, d, "duration", "a string of "+acceptedDuration, ParseDuration)
}

func unmarshal[T ~int64](data []byte, into *T, kind, accepted string, parse func(string) (T, error)) error {
	switch {
	case string(data) == "null":
		return nil
	case bytes.HasPrefix(data, []byte{'"'}):
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return fail(kind, string(data), "it is no JSON string", accepted)
		}
		v, err := parse(text)
		if err != nil {
			return err
		}
		*into = v
		return nil
	}
	v, err := strconv.ParseUint(string(data), 10, 63)
	if err != nil {
		return fail(kind, string(data), "it is no whole number from 0 to 2^63-1", accepted)
	}
	*into = T(v)
	return nil
}

// Set parses text for a command-line flag.
func (c *MilliCPU) Set(text string) error { return set(c, text, ParseMilliCPU) }

// Set parses text for a command-line flag.
func (b *Bytes) Set(text string) error { return set(b, text, ParseBytes) }

// Set parses text for a command-line flag.
func (d *Duration) Set(text string) error { return set(d, text, ParseDuration) }

// Type names the quantity in help texts.
func (*MilliCPU) Type() string { return "cpus" }

// Type names the quantity in help texts.
func (*Bytes) Type() string { return "size" }

// Type names the quantity in help texts.
func (*Duration) Type() string { return "duration" }

func set[T any](into *T, text string, parse func(string) (T, error)) error {
	v, err := parse(text)
	if err != nil {
		return err
	}
	*into = v
	return nil
}

var (
	_ json.Marshaler = MilliCPU(0)
	_ json.Marshaler = Bytes(0)
	_ json.Marshaler = Duration(0)
	_ fmt.Stringer   = Bytes(0)
)
