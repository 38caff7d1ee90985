package unit

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const (
	acceptedCPU      = "CPUs with at most three decimals (\"2\", \"0.5\") or thousandths (\"1500m\")"
	acceptedBytes    = "a number with B, kB, MB, GB, TB, PB (powers of 1000), KiB, MiB, GiB, TiB, PiB (powers of 1024), or none for bytes (\"80GiB\", \"1.5TB\", \"4096\")"
	acceptedDuration = "numbers with the units d, h, m, s, ms, us, ns (\"90s\", \"1h30m\", \"2d\")"
)

func fail(kind, input, why, accepted string) error {
	if len(input) > 64 {
		input = strings.ToValidUTF8(input[:64], "") + "…"
	}
	return &Error{Kind: kind, Input: input, Why: why, Accepted: accepted}
}

// ParseMilliCPU reads CPUs ("2", "0.5", "1.250") or thousandths ("1500m"). Negative
// numbers, exponents, more than three decimals and what overflows are refused with
// an *Error.
func ParseMilliCPU(text string) (MilliCPU, error) {
	number, unit := split(text)
	scale := uint64(1000)
	switch unit {
	case "":
	case "m":
		scale = 1
	default:
		return 0, fail("CPU amount", text, unknownUnit(number, unit), acceptedCPU)
	}
	v, why := scaled(number, scale)
	if why != "" {
		return 0, fail("CPU amount", text, why, acceptedCPU)
	}
	return MilliCPU(v), nil
}

// byteUnits are the units of ParseBytes. kB is how SI spells it, KB how people do.
var byteUnits = map[string]uint64{
	"": 1, "B": 1,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
	"KiB": uint64(KiB), "MiB": uint64(MiB), "GiB": uint64(GiB), "TiB": uint64(TiB), "PiB": uint64(PiB),
}

// ParseBytes reads a size: "80GiB", "512MB", "1.5TiB" or plain bytes. The result
// must be a whole number of bytes. "1Gi" and "1G" are refused, because they mean
// different things to different programs, and so are exponents.
func ParseBytes(text string) (Bytes, error) {
	number, unit := split(text)
	scale, ok := byteUnits[unit]
	if !ok {
		why := unknownUnit(number, unit)
		if _, known := byteUnits[unit+"B"]; known && number != "" {
			why = fmt.Sprintf("unit %q is ambiguous, write %q", unit, number+unit+"B")
		}
		return 0, fail("size", text, why, acceptedBytes)
	}
	v, why := scaled(number, scale)
	if why != "" {
		return 0, fail("size", text, why, acceptedBytes)
	}
	return Bytes(v), nil
}

// ParseDuration reads "90s", "1h30m", "2d" or "0"; a day has 24 hours. Numbers
// without a unit and negative durations are refused.
func ParseDuration(text string) (Duration, error) {
	bad := func(why string) (Duration, error) { return 0, fail("duration", text, why, acceptedDuration) }
	switch {
	case text == "":
		return bad("it is empty")
	case text[0] == '-':
		return bad("it is negative")
	case text[0] == '+':
		return bad("it has a sign")
	case len(text) > 64:
		return bad("it is too long")
	}
	var days time.Duration
	if n, rest, ok := strings.Cut(text, "d"); ok {
		v, why := scaled(n, uint64(24*time.Hour))
		if why != "" {
			return bad(why)
		}
		days = time.Duration(v)
		if text = rest; text == "" {
			return Duration(days), nil
		}
		if text[0] == '-' || text[0] == '+' {
			return bad("a sign stands within it")
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		if _, why := scaled(text, 1); why == "" {
			return bad("it has no unit, write \"" + text + "s\" for seconds")
		}
		return bad(strings.TrimPrefix(err.Error(), "time: "))
	}
	if d > math.MaxInt64-days {
		return bad("it is too long")
	}
	return Duration(days + d), nil
}

// split cuts the number off a quantity; the rest is its unit.
func split(text string) (number, unit string) {
	i := 0
	for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == '.') {
		i++
	}
	return text[:i], text[i:]
}

func unknownUnit(number, unit string) string {
	switch {
	case number == "" && strings.HasPrefix(unit, "-"):
		return "it is negative"
	case number == "":
		return "it does not start with a digit"
	}
	return fmt.Sprintf("unit %.16q is unknown", unit)
}

// scaled computes number × scale exactly. It answers why when it cannot: the
// product is no whole number, or over the range of int64.
func scaled(number string, scale uint64) (v int64, why string) {
	if number == "" {
		return 0, "it has no number"
	}
	whole, frac, point := strings.Cut(number, ".")
	if whole == "" || point && frac == "" {
		return 0, "a digit is missing beside the point"
	}
	w, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		if isDigits(whole) {
			return 0, "it is too large"
		}
		return 0, "it is not a decimal number"
	}
	frac = strings.TrimRight(frac, "0")
	var f, ten uint64 = 0, 1
	if frac != "" {
		// 18 digits: ten still fits, and f × scale / ten cannot overflow Div64.
		if len(frac) > 18 || !isDigits(frac) {
			return 0, "it has too many decimals or a second point"
		}
		if f, err = strconv.ParseUint(frac, 10, 64); err != nil {
			return 0, "it is not a decimal number"
		}
		for range frac {
			ten *= 10
		}
	}
	hi, lo := bits.Mul64(w, scale)
	fhi, flo := bits.Mul64(f, scale)
	part, rem := bits.Div64(fhi, flo, ten) // f < ten, so fhi < ten
	if rem != 0 {
		return 0, "it is finer than the smallest unit"
	}
	sum, carry := bits.Add64(lo, part, 0)
	if hi != 0 || carry != 0 || sum > math.MaxInt64 {
		return 0, "it is too large"
	}
	return int64(sum), ""
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
