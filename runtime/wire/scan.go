package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
)

// A message may make the decoder allocate allocPerByte bytes for each of its own
// plus allocBase: a nil element takes one byte on the wire and a whole struct in
// memory, so paying for declared lengths alone would still allow 400 to 1.
const (
	allocPerByte = 64
	allocBase    = 1 << 20
)

// scanner walks an encoding without decoding it.
type scanner struct {
	b      []byte
	off    int
	budget int64
}

// scan checks that b is exactly one well-formed value which fits the shape of t, so
// far as lengths, depth, keys and the range of integers go. It allocates nothing but
// errors and, for maps of more than a few keys, a set of keys.
func scan(b []byte, t reflect.Type, limit int) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, allowed %d", ErrTooLarge, len(b), limit)
	}
	if len(b) == 0 {
		return fmt.Errorf("%w: no bytes", ErrMalformed)
	}
	s := scanner{b: b, budget: allocBase + allocPerByte*int64(len(b))}
	if err := s.value(shapeOf(t), 0); err != nil {
		return err
	}
	if s.off != len(b) {
		return s.bad("%d bytes after the value", len(b)-s.off)
	}
	return nil
}

func (s *scanner) bad(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrMalformed, s.off, fmt.Sprintf(format, args...))
}

// uint reads an n-byte big-endian number.
func (s *scanner) uint(n int) (uint64, error) {
	if len(s.b)-s.off < n {
		return 0, s.bad("cut short")
	}
	p := s.b[s.off : s.off+n]
	s.off += n
	switch n {
	case 1:
		return uint64(p[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), nil
	}
	return binary.BigEndian.Uint64(p), nil
}

// take skips n bytes, if they are there, and returns them.
func (s *scanner) take(n uint64) ([]byte, error) {
	if n > uint64(len(s.b)-s.off) {
		return nil, s.bad("%d bytes declared, %d left", n, len(s.b)-s.off)
	}
	p := s.b[s.off : s.off+int(n)]
	s.off += int(n)
	return p, nil
}

// charge accounts for n things of size bytes that the decoder would allocate.
func (s *scanner) charge(n uint64, size uintptr) error {
	if size == 0 {
		return nil
	}
	if n > uint64(s.budget)/uint64(size) {
		return s.bad("%d elements of %d bytes are too much for a message of %d bytes", n, size, len(s.b))
	}
	s.budget -= int64(n * uint64(size))
	return nil
}

// value walks one value. sh is nil where the decoder will skip it.
func (s *scanner) value(sh *shape, depth int) error {
	for sh != nil && sh.kind == reflect.Pointer {
		if s.off < len(s.b) && s.b[s.off] != 0xc0 {
			if err := s.charge(1, sh.elem.typ.Size()); err != nil {
				return err
			}
		}
		sh = sh.elem
	}
	start := s.off
	c, err := s.uint(1)
	if err != nil {
		return err
	}
	switch {
	case c <= 0x7f:
		return s.integer(sh, c, false, start)
	case c >= 0xe0:
		return s.integer(sh, uint64(int64(int8(c))), true, start)
	case c <= 0x8f:
		return s.object(sh, c&0x0f, depth)
	case c <= 0x9f:
		return s.array(sh, c&0x0f, depth)
	case c <= 0xbf:
		_, err = s.take(c & 0x1f)
		return err
	}
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return nil
	case 0xc4, 0xc5, 0xc6, 0xd9, 0xda, 0xdb: // binary, string
		return s.bytes(c)
	case 0xca, 0xcb: // floats
		_, err = s.take(4 << (c - 0xca))
		return err
	case 0xcc, 0xcd, 0xce, 0xcf:
		u, err := s.uint(1 << (c - 0xcc))
		if err != nil {
			return err
		}
		return s.integer(sh, u, false, start)
	case 0xd0, 0xd1, 0xd2, 0xd3:
		u, err := s.uint(1 << (c - 0xd0))
		if err != nil {
			return err
		}
		shift := 64 - 8<<(c-0xd0)
		i := int64(u<<shift) >> shift
		return s.integer(sh, uint64(i), i < 0, start)
	case 0xc7, 0xd6, 0xd7: // extensions that hold a time
		// Anywhere else the library may step over the header alone and read the
		// content as a map, with a length that nobody has checked.
		if sh == nil || sh.leaf {
			return s.time(c)
		}
	case 0xdc, 0xdd:
		n, err := s.uint(2 << (c - 0xdc))
		if err != nil {
			return err
		}
		return s.array(sh, n, depth)
	case 0xde, 0xdf:
		n, err := s.uint(2 << (c - 0xde))
		if err != nil {
			return err
		}
		return s.object(sh, n, depth)
	}
	s.off = start
	return s.bad("code %#02x is not used", c)
}

// bytes skips a string or binary value of the three sizes of length.
func (s *scanner) bytes(c uint64) error {
	width := 1 << (c - 0xc4)
	if c >= 0xd9 {
		width = 1 << (c - 0xd9)
	}
	n, err := s.uint(width)
	if err != nil {
		return err
	}
	_, err = s.take(n)
	return err
}

// time skips an extension of type -1 with one of its three lengths; the library
// would call whatever else is registered.
func (s *scanner) time(c uint64) error {
	n := uint64(4)
	switch c {
	case 0xd7:
		n = 8
	case 0xc7:
		n = 12
		if m, err := s.uint(1); err != nil {
			return err
		} else if m != n {
			return s.bad("extension of %d bytes", m)
		}
	}
	if t, err := s.uint(1); err != nil {
		return err
	} else if t != 0xff {
		return s.bad("extension of type %d", int8(t))
	}
	_, err := s.take(n)
	return err
}

// integer refuses what the library would wrap around silently.
func (s *scanner) integer(sh *shape, u uint64, negative bool, start int) error {
	if sh == nil {
		return nil
	}
	size := uint(0)
	if sh.kind >= reflect.Int && sh.kind <= reflect.Uint64 {
		size = uint(sh.typ.Size() * 8)
	}
	ok := true
	switch sh.kind {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if negative {
			ok = int64(u) >= math.MinInt64>>(64-size)
		} else {
			ok = u <= uint64(math.MaxInt64)>>(64-size)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		ok = !negative && u <= uint64(math.MaxUint64)>>(64-size)
	}
	if !ok {
		s.off = start
		return s.bad("number out of the range of %s", sh.typ)
	}
	return nil
}

func (s *scanner) array(sh *shape, n uint64, depth int) error {
	if depth >= MaxDepth {
		return s.bad("nested deeper than %d", MaxDepth)
	}
	if n > uint64(len(s.b)-s.off) { // an element takes a byte at least
		return s.bad("%d elements declared, %d bytes left", n, len(s.b)-s.off)
	}
	var elem *shape
	if sh != nil {
		switch sh.kind {
		case reflect.Slice:
			elem = sh.elem
			if err := s.charge(n, elem.typ.Size()); err != nil {
				return err
			}
		case reflect.Array:
			elem = sh.elem
		default:
			// The library would take an array for a struct, field by field.
			return s.bad("an array where %s is wanted", sh.typ)
		}
	}
	for range n {
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) object(sh *shape, n uint64, depth int) error {
	if depth >= MaxDepth {
		return s.bad("nested deeper than %d", MaxDepth)
	}
	if n > uint64(len(s.b)-s.off)/2 { // a key and a value, a byte each at least
		return s.bad("%d pairs declared, %d bytes left", n, len(s.b)-s.off)
	}
	if sh != nil && sh.kind != reflect.Map && sh.kind != reflect.Struct || sh != nil && sh.leaf {
		return s.bad("a map where %s is wanted", sh.typ)
	}
	if sh != nil && sh.kind == reflect.Map {
		if err := s.charge(n, sh.typ.Key().Size()+sh.elem.typ.Size()+16); err != nil {
			return err
		}
	}
	var seen keySet
	for range n {
		key, err := s.key()
		if err != nil {
			return err
		}
		if !seen.add(key, int(n)) {
			return s.bad("key %.40q twice", key)
		}
		var elem *shape
		if sh != nil && sh.kind == reflect.Map {
			elem = sh.elem
		} else if sh != nil {
			if i, ok := sh.fields[string(key)]; ok {
				elem = sh.kinds[i]
			}
		}
		if err := s.value(elem, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// key reads a string; nothing else is a key of ours.
func (s *scanner) key() ([]byte, error) {
	start := s.off
	c, err := s.uint(1)
	if err != nil {
		return nil, err
	}
	switch {
	case c >= 0xa0 && c <= 0xbf:
		return s.take(c & 0x1f)
	case c >= 0xd9 && c <= 0xdb:
		n, err := s.uint(1 << (c - 0xd9))
		if err != nil {
			return nil, err
		}
		return s.take(n)
	}
	s.off = start
	return nil, s.bad("key of code %#02x, want a string", c)
}

// keySet holds few keys in place and many in a map.
type keySet struct {
	few  [16][]byte
	n    int
	many map[string]struct{}
}

// add reports whether the key is new; total is how many will come.
func (k *keySet) add(key []byte, total int) bool {
	if total > len(k.few) {
		if k.many == nil {
			k.many = make(map[string]struct{}, min(total, 1024))
		}
		if _, ok := k.many[string(key)]; ok {
			return false
		}
		k.many[string(key)] = struct{}{}
		return true
	}
	for _, f := range k.few[:k.n] {
		if string(f) == string(key) {
			return false
		}
	}
	k.few[k.n] = key
	k.n++
	return true
}
