package wire

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// messages is one of each struct in messages.go and life.go; TestEveryMessageIsListed keeps it so.
var messages = []any{
	Position{},
	NodeInfo{},
	RegisterRequest{},
	RegisterReply{},
	RenewRequest{},
	RenewReply{},
	Heartbeat{},
	HeartbeatAck{},
	AllocStatus{},
	RankStep{},
	Desired{},
	Alloc{},
	Limits{},
	StopOrder{},
	AttemptSpec{},
	RankSpec{},
	CheckpointSpec{},
	RestoreSpec{},
	Report{},
	ReportAck{},
	SeqAck{},
	AllocEvent{},
	RankExit{},
	Prepared{},
	PreparedFile{},
	Metric{},
	MeshDim{},
	Verdict{},
	Task{},
	TaskReply{},
	ReadLog{},
	LogChunk{},
	StartCheck{},
	StartCheckReply{},
	Signal{},
	SignalReply{},
	Fault{},
	FaultReply{},
	AllocTerms{},
	ShimCall{},
	ShimAck{},
	StepsNow{},
}

func TestEveryMessageIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, m := range messages {
		listed[reflect.TypeOf(m).Name()] = true
	}
	var decls []ast.Decl
	for _, name := range []string{"messages.go", "life.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		decls = append(decls, file.Decls...)
	}
	found := 0
	ast.Inspect(&ast.File{Name: ast.NewIdent("wire"), Decls: decls}, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, ok := spec.Type.(*ast.StructType); ok {
				found++
				if !listed[spec.Name.Name] {
					t.Errorf("%s is not in messages, so its round trip is not tested", spec.Name.Name)
				}
			}
		}
		return true
	})
	if found < 20 {
		t.Fatalf("found %d structs in messages.go", found)
	}
}

// fill sets every field to a random value; slices and maps are nil or not empty,
// because omitempty makes the two one on the wire.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("ü", r.IntN(3)) + fmt.Sprint(r.Uint32()))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(r.Uint64()) >> r.IntN(64))
	case reflect.Uint64:
		v.SetUint(r.Uint64() >> r.IntN(64))
	case reflect.Float64:
		v.SetFloat(r.NormFloat64())
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(256)))
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(r, field)
		}
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem())
		}
	case reflect.Slice:
		if n := r.IntN(20); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(r, v.Index(i))
			}
		}
	case reflect.Map:
		if n := r.IntN(20); n > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(r, k)
				fill(r, e)
				v.SetMapIndex(k, e)
			}
		}
	default:
		panic("fill: " + v.Type().String())
	}
}

func TestRoundTripOfEveryMessage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, m := range messages {
		typ := reflect.TypeOf(m)
		t.Run(typ.Name(), func(t *testing.T) {
			for range 50 {
				in := reflect.New(typ)
				fill(r, in.Elem())
				b, err := Marshal(in.Interface())
				if err != nil {
					t.Fatal(err)
				}
				out := reflect.New(typ)
				if err := Unmarshal(b, out.Interface()); err != nil {
					t.Fatalf("%v\n% x", err, b)
				}
				if !reflect.DeepEqual(in.Interface(), out.Interface()) {
					t.Fatalf("sent %+v\ngot  %+v", in.Elem(), out.Elem())
				}
				byValue, err := Marshal(in.Elem().Interface())
				if err != nil || !bytes.Equal(b, byValue) {
					t.Fatalf("a pointer and its value encode differently (%v)", err)
				}
			}
		})
	}
}

func TestEqualValuesHaveEqualEncodings(t *testing.T) {
	var first []byte
	for i := range 1000 {
		labels := map[string]string{}
		for j := range 40 { // inserted in another order each time
			labels[fmt.Sprint("label", (i*7+j)%40)] = "x"
		}
		b, err := Marshal(NodeInfo{Name: "n1", Labels: labels, CPU: 4000, Memory: unit.GiB})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(first, b) {
			t.Fatalf("encoding %d differs from the first", i)
		}
	}
}

func TestUnitsAreIntegersOnTheWire(t *testing.T) {
	b, err := Marshal(Limits{CPU: 1, Memory: 2})
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte("\x82\xa3cpu\x01\xa6memory\x02"); !bytes.Equal(b, want) {
		t.Fatalf("got % x, want % x", b, want)
	}
}

type tree struct {
	Kids []tree `json:"k,omitempty"`
}

type narrow struct {
	I8  int8     `json:"i8,omitempty"`
	U8  uint8    `json:"u8,omitempty"`
	I64 int64    `json:"i64,omitempty"`
	U64 uint64   `json:"u64,omitempty"`
	F   float64  `json:"f,omitempty"`
	P   **narrow `json:"p,omitempty"`
}

type stamped struct {
	At time.Time         `json:"at"`
	M  map[string]string `json:"m,omitempty"`
}

func TestRefused(t *testing.T) {
	deep := func(n int) []byte {
		return append(bytes.Repeat([]byte{0x81, 0xa1, 'k', 0x91}, n), 0x80)
	}
	deepSkipped := append([]byte("\x81\xa1?"), append(bytes.Repeat([]byte{0x91}, 10000), 0xc0)...)
	cases := []struct {
		name string
		into any
		b    []byte
		want error
	}{
		{"empty", &Position{}, nil, ErrMalformed},
		{"array of 4 Gi elements in 5 bytes", &[]string{}, []byte("\xdd\xff\xff\xff\xff"), ErrMalformed},
		{"the same for a struct", &Desired{}, []byte("\xdd\xff\xff\xff\xff"), ErrMalformed},
		{"map of 4 Gi pairs", &map[string]string{}, []byte("\xdf\xff\xff\xff\xff"), ErrMalformed},
		{"binary of 4 GiB", &[]byte{}, []byte("\xc6\xff\xff\xff\xff"), ErrMalformed},
		{"string of 4 GiB", new(string), []byte("\xdb\xff\xff\xff\xff"), ErrMalformed},
		{"huge array in a field", &Desired{}, []byte("\x81\xa6allocs\xdd\xff\xff\xff\xff"), ErrMalformed},
		{"huge array in an unknown field", &Desired{}, []byte("\x81\xa1?\xdd\xff\xff\xff\xff"), ErrMalformed},
		{"nil elements of a large struct", &Desired{}, append([]byte("\x81\xa6allocs\xdd\x00\x08\x00\x00"), bytes.Repeat([]byte{0xc0}, 1<<19)...), ErrMalformed},
		{"trailing byte", &Position{}, []byte("\x80\xc0"), ErrMalformed},
		{"two values", &Position{}, []byte("\x80\x80"), ErrMalformed},
		{"cut in a length", &Position{}, []byte("\xde\x00"), ErrMalformed},
		{"cut in a value", &Position{}, []byte("\x81\xa1t"), ErrMalformed},
		{"depth 33", &tree{}, deep(17), ErrMalformed},
		{"depth 10,000 in an unknown field", &Position{}, deepSkipped, ErrMalformed},
		{"field twice", &Position{}, []byte("\x82\xa1t\x01\xa1t\x02"), ErrMalformed},
		{"field twice, spelled differently", &Position{}, []byte("\x82\xa1t\x01\xd9\x01t\x02"), ErrMalformed},
		{"key of a map twice", &stamped{}, []byte("\x81\xa1m\x82\xa1a\xa0\xa1a\xa0"), ErrMalformed},
		{"integer key", &Position{}, []byte("\x81\x01\x01"), ErrMalformed},
		{"binary key", &Position{}, []byte("\x81\xc4\x01t\x01"), ErrMalformed},
		{"struct as array", &Position{}, []byte("\x92\x01\x02"), ErrMalformed},
		{"struct as string", &Position{}, []byte("\xa1t"), ErrMalformed},
		{"string as number", &Position{}, []byte("\x81\xa1t\xa11"), ErrMalformed},
		{"300 in an int8", &narrow{}, []byte("\x81\xa2i8\xcd\x01\x2c"), ErrMalformed},
		{"-129 in an int8", &narrow{}, []byte("\x81\xa2i8\xd1\xff\x7f"), ErrMalformed},
		{"256 in a uint8", &narrow{}, []byte("\x81\xa2u8\xcd\x01\x00"), ErrMalformed},
		{"-1 in a uint64", &narrow{}, []byte("\x81\xa3u64\xff"), ErrMalformed},
		{"2^63 in an int64", &narrow{}, []byte("\x81\xa3i64\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), ErrMalformed},
		{"float in an int64", &narrow{}, []byte("\x81\xa3i64\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"), ErrMalformed},
		{"code that is not used", &Position{}, []byte("\xc1"), ErrMalformed},
		{"foreign extension", &stamped{}, []byte("\x81\xa2at\xd6\x05\x00\x00\x00\x00"), ErrMalformed},
		{"map hidden in an extension", &stamped{}, []byte("\x81\xa1m\xc7\x0c\xff\xdf\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00"), ErrMalformed},
		{"over the limit", &[]byte{}, append([]byte("\xc6\x00\x80\x00\x00"), make([]byte, MaxSize)...), ErrTooLarge},
		{"used value", &Position{Term: 1}, []byte("\x80"), ErrType},
		{"no pointer", Position{}, []byte("\x80"), ErrType},
		{"nil pointer", (*Position)(nil), []byte("\x80"), ErrType},
		{"nil", nil, []byte("\x80"), ErrType},
		{"any", new(any), []byte("\xc0"), ErrType},
		{"map without a stable order", &struct{ M map[string]int64 }{}, []byte("\x80"), ErrType},
		{"type that encodes itself", &struct{ D textual }{}, []byte("\x80"), ErrType},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.into != nil && reflect.TypeOf(c.into).Kind() == reflect.Pointer && !errors.Is(c.want, ErrType) {
				c.into = reflect.New(reflect.TypeOf(c.into).Elem()).Interface()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Unmarshal(c.b, c.into)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("refusing took %d bytes of memory", n)
			}
		})
	}
}

type textual int

func (textual) MarshalText() ([]byte, error) { return nil, nil }

func TestAccepted(t *testing.T) {
	minimal := narrow{I8: math.MinInt8, U8: math.MaxUint8, I64: math.MinInt64, U64: math.MaxUint64, F: 0.5}
	inner := &narrow{F: 1}
	for _, in := range []any{
		&minimal, &narrow{I8: math.MaxInt8, I64: math.MaxInt64, P: &inner}, &stamped{At: time.Unix(1, 5)},
		&tree{Kids: []tree{{}, {Kids: []tree{{}}}}},
	} {
		b, err := Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := reflect.New(reflect.TypeOf(in).Elem()).Interface()
		if err := Unmarshal(b, out); err != nil || !reflect.DeepEqual(in, out) {
			t.Errorf("sent %+v, got %+v, %v", in, out, err)
		}
	}
	// What a newer build sends in addition is skipped.
	var p Position
	if err := Unmarshal([]byte("\x82\xa3new\x92\x01\x81\xa1x\xc0\xa1i\x07"), &p); err != nil || p.Index != 7 {
		t.Errorf("unknown field: %+v, %v", p, err)
	}
}

func TestMarshalRefusesWhatUnmarshalWould(t *testing.T) {
	if _, err := Marshal(LogChunk{Data: make([]byte, MaxSize)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	big := LogChunk{Data: make([]byte, MaxSize)}
	b, err := MarshalMax(big, 2*MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	if err := UnmarshalMax(b, new(LogChunk), 2*MaxSize); err != nil {
		t.Error(err)
	}
	chain := tree{}
	for range MaxDepth {
		chain = tree{Kids: []tree{chain}}
	}
	if _, err := Marshal(chain); !errors.Is(err, ErrMalformed) {
		t.Errorf("too deep: %v", err)
	}
	for _, v := range []any{nil, map[string]int{"a": 1}, struct{ V any }{}, struct{ N narrowTag }{}, struct{ *Position }{}} {
		if _, err := Marshal(v); !errors.Is(err, ErrType) {
			t.Errorf("%T: %v", v, err)
		}
	}
}

type narrowTag struct {
	A int `msgpack:"b"`
}

// FuzzUnmarshal: any input is decoded or refused with a typed error, and what was
// decoded can be encoded and decoded again.
func FuzzUnmarshal(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, m := range messages {
		v := reflect.New(reflect.TypeOf(m))
		fill(r, v.Elem())
		b, err := Marshal(v.Interface())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{"", "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff", "\x81\xa1m\xc7\x0c\xff\xdf\xff\xff\xff\xff", "\xc1", "\x80\x80"} {
		f.Add([]byte(s))
	}
	types := append([]any{stamped{}, narrow{}, tree{}, map[string]string{}, []string{}, ""}, messages...)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range types {
			v := reflect.New(reflect.TypeOf(m))
			err := Unmarshal(b, v.Interface())
			if err == nil {
				again, err := Marshal(v.Interface())
				if err != nil {
					t.Fatalf("%T was decoded and cannot be encoded: %v", m, err)
				}
				if err := Unmarshal(again, reflect.New(reflect.TypeOf(m)).Interface()); err != nil {
					t.Fatalf("%T was encoded and cannot be decoded: %v", m, err)
				}
			} else if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("%T: untyped error %v", m, err)
			}
		}
	})
}

// TestLibraryStillHasTheTraps shows why the guard exists; when an upgrade of the
// library makes it fail, the guard may be thinned out.
func TestLibraryStillHasTheTraps(t *testing.T) {
	var n struct{ A int8 }
	if err := msgpack.Unmarshal([]byte("\x81\xa1A\xcd\x01\x2c"), &n); err != nil || n.A != 44 {
		t.Errorf("300 in an int8 is now %d, %v", n.A, err)
	}
	var p Position
	if err := msgpack.Unmarshal([]byte("\x80\xc1\xc1"), &p); err != nil {
		t.Errorf("trailing bytes are now %v", err)
	}
}
