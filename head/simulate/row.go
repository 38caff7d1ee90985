package simulate

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// row is one line of a table while it is read; what is wrong with it goes to the reader.
type row struct {
	r      *reader
	line   int
	head   []string
	rec    []string
	column func(int) int
}

// field is the text of a column and where it begins; "" when there is no such column.
func (x *row) field(name string) (text string, column int) {
	i := slices.Index(x.head, name)
	if i < 0 || i >= len(x.rec) {
		return "", 0
	}
	return strings.TrimSpace(x.rec[i]), x.column(i)
}

func (x *row) text(name string) string {
	s, _ := x.field(name)
	return s
}

// has reports whether the row says anything in a column.
func (x *row) has(name string) bool { return x.text(name) != "" }

func (x *row) problem(column int, format string, args ...any) {
	x.r.problem(x.line, column, format, args...)
}

// seconds reads a number of seconds, or a duration with units.
func (x *row) seconds(name string) time.Duration {
	s, at := x.field(name)
	if s == "" {
		x.problem(at, "%s is empty: give a number of seconds", name)
		return 0
	}
	d, why := seconds(s)
	if why != "" {
		x.problem(at, "%s: %.40q %s; give seconds, as 90, or a duration, as 1h30m", name, s, why)
	}
	return d
}

// seconds reads "90", "0.25" or "1h30m"; why says what is wrong with it.
func seconds(s string) (time.Duration, string) {
	if d, err := unit.ParseDuration(s); err == nil {
		if d.D() > longest {
			return 0, "is more than 100 years"
		}
		return d.D(), ""
	}
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil && strings.ContainsAny(s, "eExX_"), err != nil:
		return 0, "is no number"
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, "is not finite"
	case v < 0:
		return 0, "is negative"
	case v > longest.Seconds():
		return 0, "is more than 100 years"
	}
	// Whole seconds stay exact, and fractions are cut to the nanosecond.
	whole, part := math.Modf(v)
	return time.Duration(whole)*time.Second + time.Duration(math.Round(part*1e9)), ""
}

// count reads a whole number of at least low.
func (x *row) count(name string, low int64) int64 {
	s, at := x.field(name)
	if s == "" {
		x.problem(at, "%s is empty: give a whole number", name)
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		// Some tools write whole numbers as 8.0.
		f, ferr := strconv.ParseFloat(s, 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			x.problem(at, "%s: %.40q is no whole number", name, s)
			return 0
		}
		n = int64(f)
	}
	switch {
	case n < low:
		x.problem(at, "%s: %d is less than %d", name, n, low)
	case n > math.MaxInt32*1000:
		x.problem(at, "%s: %d is more than a cluster has", name, n)
	default:
		return n
	}
	return 0
}

// sizes reads a list of numbers of ranks, as 2|4|8.
func (x *row) sizes(text string, at int) []int64 {
	var out []int64
	for word := range strings.SplitSeq(text, "|") {
		n, err := strconv.ParseInt(strings.TrimSpace(word), 10, 32)
		if err != nil || n < 1 {
			x.problem(at, "sizes: %.40q is no number of ranks; give a list, as 2|4|8", word)
			return nil
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// optional is count of a column that may be missing or empty.
func (x *row) optional(name string, low int64) int64 {
	if !x.has(name) {
		return 0
	}
	return x.count(name, low)
}

func (x *row) optionalSeconds(name string) time.Duration {
	if !x.has(name) {
		return 0
	}
	return x.seconds(name)
}

// truth reads a yes or a no.
func (x *row) truth(name string) bool {
	s, at := x.field(name)
	if s == "" {
		return false
	}
	b, err := strconv.ParseBool(strings.ToLower(s))
	if err != nil {
		x.problem(at, "%s: %.40q is neither true nor false", name, s)
	}
	return b
}

// moment reads a date with a time, without a zone.
func (x *row) moment(name string) time.Duration {
	s, at := x.field(name)
	t, err := time.Parse(time.DateTime, s)
	if err != nil {
		t, err = time.Parse(time.RFC3339, s)
	}
	if err != nil {
		x.problem(at, "%s: %.40q is no time; give it as 2017-10-09 07:01:55", name, s)
		return 0
	}
	if t.Year() < 1970 || t.Year() > 2100 {
		x.problem(at, "%s: the year %d is not between 1970 and 2100", name, t.Year())
		return 0
	}
	x.r.dated = true
	return time.Duration(t.UnixNano())
}
