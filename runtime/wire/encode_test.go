package wire

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// byLibrary is what the encoder must write.
func byLibrary(t *testing.T, v any) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.SetCustomStructTag("json")
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type base struct {
	A int64 `json:"a,omitempty"`
	B []byte
}

// even says itself when it is empty.
type even int64

func (e even) IsZero() bool { return e%2 == 0 }

// kinds has what messages have not.
type kinds struct {
	base
	Inner  base              `json:"inner,omitempty"` //nolint:modernize // it has, to the library
	Named  base              `json:"named"`
	I      int               `json:"i"`
	I16    int16             `json:"i16,omitempty"`
	U32    uint32            `json:"u32"`
	F32    float32           `json:"f32,omitempty"`
	F64    float64           `json:"f64,omitempty"`
	Bytes  [4]byte           `json:"bytes"`
	Pair   [2]string         `json:"pair,omitempty"`
	None   [0]string         `json:"none,omitempty"`
	Texts  []string          `json:"texts"`
	Flags  map[string]bool   `json:"flags"`
	Words  map[string]string `json:"words,omitempty"`
	Deep   **base            `json:"deep,omitempty"`
	Even   even              `json:"even,omitempty"`
	PEven  *even             `json:"pEven,omitempty"`
	Zero   int64             `json:"zero,omitzero"`
	When   time.Time         `json:"when"`
	Since  time.Time         `json:"since,omitempty"` //nolint:modernize // it has, to the library
	Hidden int64             `json:"-"`
}

func TestEncodesAsTheLibrary(t *testing.T) {
	same := func(v any) {
		t.Helper()
		if got, err := Marshal(v); err != nil || !bytes.Equal(got, byLibrary(t, v)) {
			t.Fatalf("%T %+v (%v):\n% x\n% x", v, v, err, got, byLibrary(t, v))
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, m := range append([]any{api.JobSpec{}, api.GroupSpec{}, api.Reason{}, api.Queue{}}, messages...) {
		same(m)
		for range 50 {
			v := reflect.New(reflect.TypeOf(m)).Elem()
			fill(r, v)
			same(v.Interface())
		}
	}
	same(tree{Kids: []tree{{}, {Kids: []tree{{}}}}})
	for n := range 64 { // every size of a number, and the ones beside it
		for _, i := range []int64{1 << n, 1<<n - 1, 1<<n + 1, -1 << n, -1<<n - 1, -1<<n + 1} {
			same(narrow{I64: i, U64: uint64(i), I8: int8(i), U8: uint8(i)})
			same(kinds{I: int(i), I16: int16(i), U32: uint32(i), Even: even(i), PEven: new(even(i))})
		}
	}
	for _, n := range []int{0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1<<16 - 1, 1 << 16, 1<<16 + 1} {
		text := strings.Repeat("x", n)
		same(kinds{base: base{B: []byte(text)}, Texts: make([]string, min(n, 1<<17)), Pair: [2]string{text, ""}, Bytes: [4]byte{1, byte(n)}})
		same(text)
		same([]byte(text))
		flags, words := map[string]bool{}, map[string]string{}
		for i := range min(n, 300) {
			flags[fmt.Sprint(i*7%n)], words[fmt.Sprint(i*7%n)] = i%2 == 0, text[:i]
		}
		same(kinds{Flags: flags, Words: words})
	}
	inner := &base{A: 1}
	for _, v := range []kinds{
		{},
		{Deep: new(*base)},
		{Deep: &inner},
		{Inner: base{B: []byte{}}},
		{Named: base{A: 1}},
		{Texts: []string{}},
		{Flags: map[string]bool{}},
		{When: time.Unix(1, 2), Since: time.Unix(1<<40, 0)},
		{F32: 1.5, F64: math.Inf(-1)},
		{F32: float32(math.Copysign(0, -1)), F64: math.NaN()},
		{Zero: 1, Hidden: 1},
	} {
		same(v)
		same(&v)
	}
}

// A buffer is used again by whoever encodes next; nobody's message changes by that.
func TestMessagesKeepTheirBytes(t *testing.T) {
	a, err := Marshal(NodeInfo{Name: strings.Repeat("a", 100)})
	if err != nil {
		t.Fatal(err)
	}
	was := bytes.Clone(a)
	for range 10 {
		if _, err := Marshal(NodeInfo{Name: strings.Repeat("b", 200)}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a, was) {
		t.Fatalf("% x became % x", was, a)
	}
}
