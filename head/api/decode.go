package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxFieldErrors bounds how many wrong fields one answer names.
const maxFieldErrors = 20

// decode reads a JSON body into the struct that into points at. It is stricter than
// encoding/json, which drops what it does not know and says little of where it failed:
// an unknown or repeated field is an error with the nearest spelling, names match by
// case, and every error carries a JSON pointer (RFC 6901). Depth and size were bounded
// by head/access.
func decode(body []byte, into any) error {
	if !utf8.Valid(body) {
		return malformed("the body is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return malformed(where(body, err))
	}
	d := decoder{}
	d.value(whole, reflect.ValueOf(into).Elem(), "")
	if len(d.errs) > 0 {
		return invalid(d.errs)
	}
	return nil
}

func malformed(detail string) error {
	return &Problem{*access.NewProblem(http.StatusBadRequest, access.CodeMalformed, api.ExitBadInput, detail, "send one JSON document")}
}

// invalid is the problem of a well-formed request with wrong fields.
func invalid(errs []api.FieldError) error { return invalidProblem(errs) }

func invalidProblem(errs []api.FieldError) *Problem {
	detail := errs[0].Detail
	if errs[0].Pointer != "" {
		detail = errs[0].Pointer + ": " + detail
	}
	if n := len(errs) - 1; n > 0 {
		detail += fmt.Sprintf(" (and %d more)", n)
	}
	p := access.NewProblem(http.StatusUnprocessableEntity, access.CodeInvalid, api.ExitBadInput, detail, "correct the fields that `errors` names")
	p.Errors = errs
	return &Problem{*p}
}

// where turns a syntax error into line and column.
func where(body []byte, err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return "the body is no JSON: " + err.Error()
	}
	at := min(max(int(syntax.Offset), 0), len(body))
	line := 1 + bytes.Count(body[:at], []byte("\n"))
	column := at - bytes.LastIndexByte(body[:at], '\n') - 1
	return fmt.Sprintf("the body is no JSON: line %d, column %d: %s", line, max(column, 1), syntax.Error())
}

type decoder struct{ errs []api.FieldError }

func (d *decoder) fail(pointer, format string, args ...any) {
	if len(d.errs) < maxFieldErrors {
		d.errs = append(d.errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (d *decoder) value(raw json.RawMessage, v reflect.Value, pointer string) {
	if string(raw) == "null" {
		return // as absent
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		d.value(raw, v.Elem(), pointer)
		return
	}
	if v.Addr().Type().Implements(unmarshaler) {
		if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
			d.fail(pointer, "%s", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(raw, v, pointer)
	case reflect.Map:
		d.mapping(raw, v, pointer)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			d.plain(raw, v, pointer)
			return
		}
		d.list(raw, v, pointer)
	default:
		d.plain(raw, v, pointer)
	}
}

// members calls f for each member of a JSON object, refusing repeated names.
func (d *decoder) members(raw json.RawMessage, pointer string, f func(name string, value json.RawMessage)) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		d.fail(pointer, "must be an object, not %s", kindOf(raw))
		return
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return // the whole was valid JSON: cannot happen
		}
		if seen[name] {
			d.fail(child(pointer, name), "is given twice")
			continue
		}
		seen[name] = true
		f(name, value)
	}
}

func (d *decoder) object(raw json.RawMessage, v reflect.Value, pointer string) {
	fields := fieldsOf(v.Type())
	d.members(raw, pointer, func(name string, value json.RawMessage) {
		known, ok := fields[name]
		if !ok {
			d.fail(child(pointer, name), "is no field here%s", suggestion(name, slices.Collect(maps.Keys(fields))))
			return
		}
		at, before := v.FieldByIndex(known.Index), len(d.errs)
		if d.value(value, at, child(pointer, name)); string(value) == "null" || len(d.errs) > before {
			return
		}
		if why := api.ZeroRefused(known, at); why != "" {
			d.fail(child(pointer, name), "%s", why)
		}
	})
}

func (d *decoder) mapping(raw json.RawMessage, v reflect.Value, pointer string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.members(raw, pointer, func(name string, value json.RawMessage) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(value, item, child(pointer, name))
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), item)
	})
}

func (d *decoder) list(raw json.RawMessage, v reflect.Value, pointer string) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		d.fail(pointer, "must be a list, not %s", kindOf(raw))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		d.value(item, v.Index(i), child(pointer, strconv.Itoa(i)))
	}
}

func (d *decoder) plain(raw json.RawMessage, v reflect.Value, pointer string) {
	if json.Unmarshal(raw, v.Addr().Interface()) == nil {
		return
	}
	want := "another kind of value"
	switch v.Kind() {
	case reflect.String:
		want = "text"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int64, reflect.Int, reflect.Int32:
		want = "a whole number that fits in 64 bits"
	case reflect.Uint64, reflect.Uint32:
		want = "a whole number from 0 that fits in 64 bits"
	case reflect.Slice:
		want = "bytes in base64"
	}
	d.fail(pointer, "must be %s, not %s", want, kindOf(raw))
}

// kindOf says what a JSON value is, for people.
func kindOf(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "text"
	case 't', 'f':
		return string(raw)
	}
	if len(raw) > 40 {
		return string(raw[:40]) + "…"
	}
	return string(raw)
}

// knownFields keeps what fieldsOf found, by type: there are as many as the program has.
var knownFields sync.Map

// fieldsOf maps JSON names to fields, embedded structs flattened. The map is shared.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	if have, ok := knownFields.Load(t); ok {
		return have.(map[string]reflect.StructField) //nolint:forcetypeassert // the only kind that is stored
	}
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = f
	}
	knownFields.Store(t, fields)
	return fields
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func child(pointer, name string) string {
	return pointer + "/" + pointerEscapes.Replace(name)
}

// suggestion names what was probably meant, or else what there is.
func suggestion(word string, known []string) string {
	sort.Strings(known)
	best, at := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if n := distance(strings.ToLower(word), strings.ToLower(k)); n < at {
			best, at = k, n
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %q?", best)
	case len(known) == 0:
		return ""
	case len(known) > 12:
		return "; there are " + strings.Join(known[:12], ", ") + ", …"
	}
	return "; there are " + strings.Join(known, ", ")
}

// distance counts the insertions, deletions, replacements and swaps of neighbours
// between two words; long words are far from everything, which bounds the work.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 10
	}
	older, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, last = last, row
	}
	return last[len(b)]
}
