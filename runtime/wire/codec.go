package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"
)

// MaxSize is what Marshal makes and Unmarshal takes at most, in bytes: one message
// of the bus and one entry of the log. MarshalMax and UnmarshalMax take another.
const MaxSize = 8 << 20

// MaxDepth bounds how deep arrays and maps may nest.
const MaxDepth = 32

// Errors of the codec; match with errors.Is. The text around them says where.
var (
	// ErrMalformed: the bytes are no encoding of the value asked for. Drop them.
	ErrMalformed = errors.New("wire: malformed message")
	// ErrTooLarge: the message is over the size that was allowed.
	ErrTooLarge = errors.New("wire: message too large")
	// ErrType: a defect of the caller: the type cannot be encoded in a stable way,
	// or the value to decode into is not a pointer to a zero value.
	ErrType = errors.New("wire: unusable type")
)

// Marshal encodes v, at most MaxSize bytes. Equal values have equal encodings.
func Marshal(v any) ([]byte, error) { return MarshalMax(v, MaxSize) }

// MarshalMax is Marshal with another limit in bytes. Whatever it returns,
// UnmarshalMax with the same limit and type takes: an entry that could be written
// into the log and not be read again would stop every replica.
func MarshalMax(v any, limit int) ([]byte, error) {
	t := reflect.TypeOf(v)
	if t == nil {
		return nil, fmt.Errorf("%w: nil has no encoding", ErrType)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if err := checkType(t); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.SetCustomStructTag("json")
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("wire: encode %s: %w", t, err)
	}
	if err := scan(buf.Bytes(), t, limit); err != nil {
		return nil, fmt.Errorf("wire: encode %s: %w", t, err)
	}
	return buf.Bytes(), nil
}

// Unmarshal decodes b, at most MaxSize bytes, into v, which must point to a zero
// value: the decoder would merge maps and keep old slices otherwise. Every byte must
// be used. On an error v is undefined.
func Unmarshal(b []byte, v any) error { return UnmarshalMax(b, v, MaxSize) }

// UnmarshalMax is Unmarshal with another limit in bytes.
func UnmarshalMax(b []byte, v any, limit int) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("%w: decode into %T, want a non-nil pointer", ErrType, v)
	}
	t := p.Type().Elem()
	if err := checkType(t); err != nil {
		return err
	}
	if !p.Elem().IsZero() {
		return fmt.Errorf("%w: decode into a used %s, want a zero value", ErrType, t)
	}
	// The scan walks the whole input before anything is allocated for it, because
	// the library believes declared lengths.
	if err := scan(b, t, limit); err != nil {
		return fmt.Errorf("wire: decode %s: %w", t, err)
	}
	r := bytes.NewReader(b)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("wire: decode %s: %w: %w", t, ErrMalformed, err)
	}
	if r.Len() != 0 {
		return fmt.Errorf("wire: decode %s: %w: %d bytes left over", t, ErrMalformed, r.Len())
	}
	return nil
}
