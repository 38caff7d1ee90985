package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// anyJSON draws a document of every kind of value, some levels deep.
func anyJSON(level int) *rapid.Generator[any] {
	text := rapid.StringMatching(`[a-z0-9 \[\]{}:,"\\\x01é]{0,8}`)
	kinds := []*rapid.Generator[any]{
		text.AsAny(), rapid.Bool().AsAny(), rapid.Float64Range(-1e6, 1e6).AsAny(), rapid.Just[any](nil),
	}
	if level > 0 {
		kinds = append(kinds,
			rapid.SliceOfN(anyJSON(level-1), 0, 4).AsAny(), rapid.MapOfN(text, anyJSON(level-1), 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func TestPartsAreWhatTheStandardLibraryFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(anyJSON(3).Draw(t, "document"))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "spaces") {
			var out bytes.Buffer
			if err := json.Indent(&out, raw, "\r", "\t "); err != nil {
				t.Fatal(err)
			}
			raw = out.Bytes()
		}
		compareParts(t, raw)
	})
}

// compareParts takes raw apart, and what is in it.
func compareParts(t *rapid.T, raw []byte) {
	switch raw[0] {
	case '{':
		want, got := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		for p := inside(raw); !p.done(); {
			name, value := p.member()
			got[string(name)] = value
			compareParts(t, value)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s:\n%s\n%s", raw, got, want)
		}
	case '[':
		want, got := []json.RawMessage{}, []json.RawMessage{}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		for p := inside(raw); !p.done(); {
			got = append(got, p.value())
			compareParts(t, got[len(got)-1])
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s:\n%s\n%s", raw, got, want)
		}
	default:
		if n := length(raw); n != len(raw) {
			t.Fatalf("%s: %d of %d bytes", raw, n, len(raw))
		}
	}
}
