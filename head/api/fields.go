package api

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// unquote is the text that a valid JSON string stands for, as encoding/json reads it.
func unquote(raw string) string {
	if plain := raw[1 : len(raw)-1]; !strings.Contains(plain, `\`) {
		return plain
	}
	var text string
	_ = json.Unmarshal([]byte(raw), &text) // it is valid
	return text
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
