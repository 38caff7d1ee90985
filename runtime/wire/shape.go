package wire

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// shape is what the scan must know of a Go type. It mirrors how the codec maps
// fields to names, so that the scan can tell what a declared length would cost.
type shape struct {
	typ    reflect.Type
	kind   reflect.Kind
	elem   *shape         // of a slice, array, map or pointer
	fields map[string]int // of a struct: name to index in kinds
	kinds  []*shape
	leaf   bool // decodes itself (time.Time); costs its size only
	err    error
}

var (
	shapes  sync.Map // reflect.Type → *shape, complete ones only
	shapeMu sync.Mutex
	timeTyp = reflect.TypeFor[time.Time]()
	strMap  = reflect.TypeFor[map[string]string]()
	boolMap = reflect.TypeFor[map[string]bool]()
	// The library prefers these over the fields of a type; the scan would then
	// check another shape than the one which is decoded.
	custom = []reflect.Type{
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
		reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler](),
		reflect.TypeFor[msgpack.Marshaler](), reflect.TypeFor[msgpack.Unmarshaler](),
		reflect.TypeFor[msgpack.CustomEncoder](), reflect.TypeFor[msgpack.CustomDecoder](),
	}
)

// checkType refuses a type that has no stable encoding. The answer is cached.
func checkType(t reflect.Type) error { return shapeOf(t).err }

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	// One builder at a time, and nothing is published before the whole graph
	// stands: a type may contain itself.
	shapeMu.Lock()
	defer shapeMu.Unlock()
	building := map[reflect.Type]*shape{}
	s := buildShape(t, building)
	for _, b := range building {
		if b.err != nil && s.err == nil {
			s.err = b.err
		}
	}
	shapes.Store(t, s)
	return s
}

func buildShape(t reflect.Type, building map[reflect.Type]*shape) *shape {
	if s := building[t]; s != nil {
		return s
	}
	s := &shape{typ: t, kind: t.Kind()}
	building[t] = s
	switch {
	case t == timeTyp:
		s.leaf = true
		return s
	case t.Kind() == reflect.Map && t != strMap && t != boolMap:
		// The library sorts the keys of these two alone.
		s.err = fmt.Errorf("%w: %s is encoded in random order; use a sorted slice of pairs", ErrType, t)
		return s
	}
	for _, i := range custom {
		if t.Implements(i) || reflect.PointerTo(t).Implements(i) {
			s.err = fmt.Errorf("%w: %s would encode itself (%s)", ErrType, t, i)
			return s
		}
	}
	switch t.Kind() {
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr:
		s.err = fmt.Errorf("%w: a message may not contain %s", ErrType, t)
	case reflect.Slice, reflect.Array, reflect.Pointer, reflect.Map:
		s.elem = buildShape(t.Elem(), building)
	case reflect.Struct:
		s.fields = map[string]int{}
		s.addFields(t, building)
	}
	return s
}

// addFields enters the fields of t under the names that the codec gives them.
func (s *shape) addFields(t reflect.Type, building map[reflect.Type]*shape) {
	for f := range t.Fields() {
		if _, own := f.Tag.Lookup("msgpack"); own {
			s.err = fmt.Errorf("%w: field %s of %s has a msgpack tag; names come from json tags", ErrType, f.Name, t)
			return
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct && f.Type != timeTyp {
			s.addFields(f.Type, building)
			continue
		}
		if f.Anonymous && f.Type.Kind() == reflect.Pointer {
			s.err = fmt.Errorf("%w: %s embeds a pointer", ErrType, t)
			return
		}
		if name == "" {
			name = f.Name
		}
		if _, twice := s.fields[name]; twice {
			s.err = fmt.Errorf("%w: %s has two fields %q", ErrType, t, name)
			return
		}
		s.fields[name] = len(s.kinds)
		s.kinds = append(s.kinds, buildShape(f.Type, building))
	}
}
