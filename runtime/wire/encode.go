package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// The encoder writes what the library would, byte for byte, for the types that a shape
// allows. The library copies a value to look whether it is empty and lists the fields of
// each struct anew, which is more work than all the rest of it.

// maxScratch is how large a buffer is kept for the next message.
const maxScratch = 64 << 10

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// appendValue appends the encoding of v, whose type has the shape.
func appendValue(b []byte, s *shape, v reflect.Value) ([]byte, error) {
	if s.leaf {
		return appendLeaf(b, v)
	}
	switch s.kind {
	case reflect.Bool:
		if v.Bool() {
			return append(b, msgpcode.True), nil
		}
		return append(b, msgpcode.False), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendUint(b, v.Uint()), nil
	case reflect.Float32:
		return binary.BigEndian.AppendUint32(append(b, msgpcode.Float), math.Float32bits(float32(v.Float()))), nil
	case reflect.Float64:
		return binary.BigEndian.AppendUint64(append(b, msgpcode.Double), math.Float64bits(v.Float())), nil
	case reflect.String:
		return appendText(b, v.String()), nil
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, msgpcode.Nil), nil
		}
		return appendValue(b, s.elem, v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			return append(b, msgpcode.Nil), nil
		}
		return appendList(b, s, v)
	case reflect.Array:
		return appendList(b, s, v)
	case reflect.Map:
		return appendMap(b, s, v)
	case reflect.Struct:
		return appendStruct(b, s, v)
	default:
		return b, ErrType // a shape allows no other
	}
}

func appendList(b []byte, s *shape, v reflect.Value) ([]byte, error) {
	n := v.Len()
	if s.elem.kind == reflect.Uint8 {
		b = appendLength(b, n, msgpcode.Bin8, msgpcode.Bin16, msgpcode.Bin32)
		if s.kind == reflect.Slice {
			return append(b, v.Bytes()...), nil
		}
		for i := range n {
			b = append(b, byte(v.Index(i).Uint()))
		}
		return b, nil
	}
	if n < 16 {
		b = append(b, msgpcode.FixedArrayLow|byte(n))
	} else {
		b = appendLength(b, n, 0, msgpcode.Array16, msgpcode.Array32)
	}
	var err error
	for i := range n {
		if b, err = appendValue(b, s.elem, v.Index(i)); err != nil {
			return b, err
		}
	}
	return b, nil
}

// appendMap writes the keys in their order.
func appendMap(b []byte, s *shape, v reflect.Value) ([]byte, error) {
	if v.IsNil() {
		return append(b, msgpcode.Nil), nil
	}
	b = appendCount(b, v.Len())
	keys := v.MapKeys()
	slices.SortFunc(keys, func(x, y reflect.Value) int {
		switch a, b := x.String(), y.String(); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	})
	var err error
	for _, k := range keys {
		if b, err = appendValue(appendText(b, k.String()), s.elem, v.MapIndex(k)); err != nil {
			return b, err
		}
	}
	return b, nil
}

// mostFields is how many fields are judged without memory of their own.
const mostFields = 128

func appendStruct(b []byte, s *shape, v reflect.Value) ([]byte, error) {
	var few [mostFields]bool
	skip := few[:]
	if len(s.list) > mostFields {
		skip = make([]bool, len(s.list))
	}
	n := len(s.list)
	for i := range s.list {
		if m := &s.list[i]; m.omit && m.empty(m.of(v)) {
			skip[i] = true
			n--
		}
	}
	b = appendCount(b, n)
	var err error
	for i := range s.list {
		if skip[i] {
			continue
		}
		m := &s.list[i]
		if b, err = appendValue(append(b, m.name...), m.shape, m.of(v)); err != nil {
			return b, err
		}
	}
	return b, nil
}

// of is the field's value in a struct.
func (m *member) of(v reflect.Value) reflect.Value {
	for _, i := range m.index {
		v = v.Field(i)
	}
	return v
}

// empty is what omitempty means to the library: a struct is empty if all of its fields
// are left out.
func (s *shape) empty(v reflect.Value) bool {
	if s.zeroes {
		if nilable := s.kind == reflect.Pointer || s.kind == reflect.Slice || s.kind == reflect.Map; nilable && v.IsNil() {
			return true
		}
		z, ok := reflect.TypeAssert[interface{ IsZero() bool }](v)
		return ok && z.IsZero()
	}
	switch s.kind {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		for i := range s.list {
			if m := &s.list[i]; !m.omit || !m.empty(m.of(v)) {
				return false
			}
		}
		return true
	case reflect.Float32, reflect.Float64:
		return v.Float() == 0 // also the one with a sign
	default:
		return v.IsZero()
	}
}

// appendLeaf has the library encode what has an encoding of its own.
func appendLeaf(b []byte, v reflect.Value) ([]byte, error) {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	err := enc.EncodeValue(v)
	return append(b, buf.Bytes()...), err
}

func appendText(b []byte, text string) []byte {
	if n := len(text); n < 32 {
		b = append(b, msgpcode.FixedStrLow|byte(n))
	} else {
		b = appendLength(b, n, msgpcode.Str8, msgpcode.Str16, msgpcode.Str32)
	}
	return append(b, text...)
}

// appendCount is how many pairs a map has.
func appendCount(b []byte, n int) []byte {
	if n < 16 {
		return append(b, msgpcode.FixedMapLow|byte(n))
	}
	return appendLength(b, n, 0, msgpcode.Map16, msgpcode.Map32)
}

// appendLength writes a length with the code of its size; without a code of one byte it
// takes two.
func appendLength(b []byte, n int, one, two, four byte) []byte {
	switch {
	case one != 0 && n <= math.MaxUint8:
		return append(b, one, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, two), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, four), uint32(n))
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n <= math.MaxInt8:
		return append(b, byte(n))
	case n <= math.MaxUint8:
		return append(b, msgpcode.Uint8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, msgpcode.Uint16), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, msgpcode.Uint32), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, msgpcode.Uint64), n)
}

func appendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0:
		return appendUint(b, uint64(n))
	case n >= -32:
		return append(b, byte(n))
	case n >= math.MinInt8:
		return append(b, msgpcode.Int8, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, msgpcode.Int16), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, msgpcode.Int32), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, msgpcode.Int64), uint64(n))
}
