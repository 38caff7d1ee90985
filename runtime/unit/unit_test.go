package unit

import (
	"encoding"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseMilliCPU(t *testing.T) {
	check(t, ParseMilliCPU, []row[MilliCPU]{
		{"2", 2000},
		{"0.5", 500},
		{"1500m", 1500},
		{"1.25", 1250},
		{"0", 0},
		{"0m", 0},
		{"1.500", 1500},
		{"0.001", 1},
		{"9223372036854775.807", math.MaxInt64},
		{"9223372036854775807m", math.MaxInt64},
		{"007", 7000},
		{"2.0m", 2},
	}, []string{
		"", "-1", "+1", "NaN", "Inf", "1e3", "0x10", "1_000", " 1", "1 ", "1,5", ".5", "1.", "1..2", "1.2.3", "0.0005", "1.5m",
		"9223372036854775.808", "9223372036854775808m", "99999999999999999999", "2 CPUs", "1M", "m", ".", "１",
	})
}

func TestParseBytes(t *testing.T) {
	check(t, ParseBytes, []row[Bytes]{
		{"0", 0},
		{"4096", 4096},
		{"80GiB", 80 << 30},
		{"512MB", 512e6},
		{"1.5TiB", 3 << 39},
		{"1kB", 1000},
		{"1KB", 1000},
		{"1KiB", 1024},
		{"7B", 7},
		{"0.5KiB", 512},
		{"1.5TB", 15e11},
		{"1PiB", 1 << 50},
		{"9223372036854775807", math.MaxInt64},
		{"0.000000000000001PB", 1},
	}, []string{
		"", "-1GiB", "NaN", "1e3", "1Gi", "1G", "1g", "80gib", "1Gb", "1 GiB", "GiB", "1.5", "0.5B", "0.0001KiB", "8192PiB",
		"9223372036854775808", "1.GiB", "1GiBB", "1EB", "0.0000000000000000001PB", "1\x00",
	})
	var e *Error
	if _, err := ParseBytes("1Gi"); !errors.As(err, &e) || !strings.Contains(e.Why, `"1GiB"`) || !strings.Contains(err.Error(), "accepted:") {
		t.Errorf("1Gi: %v", err)
	}
	if _, err := ParseBytes(strings.Repeat("9", 1<<16)); len(err.Error()) > 600 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func TestParseDuration(t *testing.T) {
	s := Duration(time.Second)
	check(t, ParseDuration, []row[Duration]{
		{"90s", 90 * s}, {"1h30m", 5400 * s}, {"2d", 172800 * s}, {"1d12h", 129600 * s}, {"0", 0}, {"0s", 0}, {"200ms", s / 5}, {"1.5h", 5400 * s}, {"0.5d", 43200 * s}, {"1ns", 1},
	}, []string{
		"", "-1s", "+1s", "1", "90", "1.5", "NaN", "1w", "1e3s", "s", "1d-1s", "1d+1s", "1d5", "1m1d", "9223372036854775808ns", "106752d", "2562048h", "106751d24h", strings.Repeat("1s", 100),
	})
	if _, err := ParseDuration("90"); err == nil || !strings.Contains(err.Error(), `"90s"`) {
		t.Errorf("90 without a unit: %v", err)
	}
}

type row[T any] struct {
	in   string
	want T
}

func check[T comparable](t *testing.T, parse func(string) (T, error), good []row[T], bad []string) {
	t.Helper()
	for _, r := range good {
		if got, err := parse(r.in); err != nil || got != r.want {
			t.Errorf("parse %q = %v, %v; want %v", r.in, got, err, r.want)
		}
	}
	for _, in := range bad {
		var e *Error
		if got, err := parse(in); !errors.As(err, &e) || e.Accepted == "" || e.Why == "" {
			t.Errorf("parse %q = %v, %v; want an *Error that says what is accepted", in, got, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.Int64Range(0, math.MaxInt64), rapid.Map(rapid.Int64Range(0, 1<<12), func(i int64) int64 { return i << 40 }),
			rapid.Map(rapid.Int64Range(0, 100000), func(i int64) int64 { return i * int64(time.Minute) })).Draw(t, "n")
		roundTrip(t, MilliCPU(n), ParseMilliCPU)
		roundTrip(t, Bytes(n), ParseBytes)
		roundTrip(t, Duration(n), ParseDuration)
	})
}

func roundTrip[T interface {
	~int64
	String() string
	json.Marshaler
}](t *rapid.T, v T, parse func(string) (T, error)) {
	if got, err := parse(v.String()); err != nil || got != v {
		t.Fatalf("%d prints as %q and parses as %d, %v", int64(v), v.String(), int64(got), err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := json.Unmarshal(b, &out); err != nil || out != v {
		t.Fatalf("%d becomes %s becomes %d, %v", int64(v), b, int64(out), err)
	}
}

func TestJSON(t *testing.T) {
	type all struct {
		C MilliCPU `json:"c"`
		B Bytes    `json:"b"`
		D Duration `json:"d,omitempty"`
	}
	b, err := json.Marshal(all{1500, 80 * GiB, Duration(90 * time.Second)})
	if want := `{"c":1500,"b":85899345920,"d":"1m30s"}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v; want %s", b, err, want)
	}
	for in, want := range map[string]all{
		`{"c":"2","b":"80GiB","d":"90s"}`: {2000, 80 * GiB, Duration(90 * time.Second)},
		`{"c":1500,"b":1024}`:             {1500, 1024, 0},
		`{"c":null,"b":null,"d":null}`:    {},
	} {
		var got all
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s gave %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{`{"c":0.5}`, `{"c":-1}`, `{"c":"-1"}`, `{"c":true}`, `{"c":1e3}`, `{"c":[]}`, `{"b":1.5}`, `{"b":"1Gi"}`, `{"b":9223372036854775808}`, `{"d":90}`, `{"d":"90"}`, `{"d":{}}`} {
		var got all
		var e *Error
		if err := json.Unmarshal([]byte(in), &got); !errors.As(err, &e) {
			t.Errorf("%s gave %+v, %v", in, got, err)
		}
	}
}

func TestPrint(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{MilliCPU(1500).String(), "1500m"},
		{MilliCPU(2000).String(), "2"},
		{MilliCPU(0).String(), "0"},
		{Bytes(0).String(), "0"},
		{(80 * GiB).String(), "80GiB"},
		{(1536 * MiB).String(), "1536MiB"},
		{Bytes(1000).String(), "1000"},
		{Bytes(512).Human(), "512 B"},
		{(80*GiB - 1).Human(), "80.0 GiB"},
		{Bytes(1024*1024 - 1).Human(), "1.0 MiB"},
		{Duration(600 * time.Second).String(), "10m"},
		{Duration(time.Hour).String(), "1h"},
		{Duration(90 * time.Second).String(), "1m30s"},
		{Duration(0).String(), "0s"},
		{Duration(20 * time.Second).String(), "20s"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// The codec of runtime/wire prefers these interfaces to the integer.
func TestUnitsDoNotEncodeThemselvesAsText(t *testing.T) {
	for _, v := range []any{new(MilliCPU), new(Bytes), new(Duration)} {
		switch v.(type) {
		case encoding.TextMarshaler, encoding.TextUnmarshaler, encoding.BinaryMarshaler, encoding.BinaryUnmarshaler:
			t.Errorf("%T encodes itself", v)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1500m", "80GiB", "90s", "2d", "1Gi", "-1", "1e3", "0.5", "9223372036854775807", "\"2\"", "null"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseMilliCPU(s); err == nil && v < 0 {
			t.Errorf("%q is %d", s, v)
		}
		if v, err := ParseBytes(s); err == nil && v < 0 {
			t.Errorf("%q is %d", s, v)
		}
		if v, err := ParseDuration(s); err == nil && v < 0 {
			t.Errorf("%q is %d", s, v)
		}
		var b Bytes
		var d Duration
		if b.UnmarshalJSON([]byte(s)) == nil && b < 0 || d.UnmarshalJSON([]byte(s)) == nil && d < 0 {
			t.Errorf("%q as JSON is %d, %d", s, b, d)
		}
	})
}
