package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// parts steps through the members of a JSON object or the items of a list. What it reads
// was found to be valid JSON, so that nothing here looks for mistakes, and each byte is
// looked at once for each level that it is below.
type parts struct{ rest []byte }

// inside begins behind the bracket that an object or list opens with.
func inside(raw []byte) parts { return parts{space(raw[1:])} }

// done: the bracket that closes comes next.
func (p *parts) done() bool { return p.rest[0] == '}' || p.rest[0] == ']' }

// member takes the next name, as text, and its value.
func (p *parts) member() (name, value []byte) {
	name = unquote(p.take())
	p.rest = space(p.rest[1:]) // the colon
	return name, p.value()
}

// value takes the next value, and the comma behind it.
func (p *parts) value() []byte {
	raw := p.take()
	if p.rest[0] == ',' {
		p.rest = space(p.rest[1:])
	}
	return raw
}

func (p *parts) take() []byte {
	n := length(p.rest)
	raw := p.rest[:n]
	p.rest = space(p.rest[n:])
	return raw
}

// space is data behind the space that it begins with.
func space(data []byte) []byte {
	for len(data) > 0 && (data[0] == ' ' || data[0] == '\n' || data[0] == '\t' || data[0] == '\r') {
		data = data[1:]
	}
	return data
}

// length is how long the value is that data begins with.
func length(data []byte) int {
	switch data[0] {
	case '"':
		return quoted(data)
	case '{', '[':
		for i, level := 0, 0; i < len(data); i++ {
			switch data[i] {
			case '"':
				i += quoted(data[i:]) - 1
			case '{', '[':
				level++
			case '}', ']':
				if level--; level == 0 {
					return i + 1
				}
			}
		}
		return len(data)
	}
	if i := bytes.IndexAny(data, ",]} \n\t\r"); i >= 0 {
		return i
	}
	return len(data)
}

// quoted is how long the text is that data begins with, its quotes included.
func quoted(data []byte) int {
	for i := 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// unquote is the text that a JSON string stands for.
func unquote(raw []byte) []byte {
	if plain := raw[1 : len(raw)-1]; bytes.IndexByte(plain, '\\') < 0 {
		return plain
	}
	var text string
	_ = json.Unmarshal(raw, &text) // it is valid
	return []byte(text)
}

// kind is what there is to know of a type before a value is read into it.
type kind struct {
	itself bool // it reads JSON by a method of its own
	text   bool // or text
	fields map[string]*field
}

// field of a struct, by its name in JSON; those of embedded structs are its own.
type field struct {
	reflect.StructField
	name   string
	number int
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// kinds keeps what kindOf found, by type: there are as many as the program has.
var kinds sync.Map

func kindOf(t reflect.Type) *kind {
	if have, ok := kinds.Load(t); ok {
		return have.(*kind) //nolint:forcetypeassert // the only kind that is stored
	}
	k := &kind{
		itself: reflect.PointerTo(t).Implements(unmarshaler), text: reflect.PointerTo(t).Implements(textUnmarshaler),
		fields: map[string]*field{},
	}
	if t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous || !f.IsExported() || name == "-" {
				continue
			}
			if name == "" {
				name = f.Name
			}
			number := len(k.fields)
			if same, ok := k.fields[name]; ok {
				number = same.number
			}
			k.fields[name] = &field{f, name, number}
		}
	}
	kinds.Store(t, k)
	return k
}
