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
	"unicode/utf8"

	"github.com/tidwall/gjson"

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
	if !json.Valid(body) {
		return malformed(where(body, json.Unmarshal(body, new(json.RawMessage))))
	}
	d := decoder{}
	d.value(string(bytes.TrimSpace(body)), reflect.ValueOf(into).Elem(), nil)
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

// place is where a value stands: a name or a number below the place of what it is part of.
// It becomes text when there is something to say of it; nil is the whole.
type place struct {
	in     *place
	name   string
	number int // in a list, where there are no names
	listed bool
}

func (p *place) String() string {
	switch {
	case p == nil:
		return ""
	case p.listed:
		return child(p.in.String(), strconv.Itoa(p.number))
	}
	return child(p.in.String(), p.name)
}

func (d *decoder) full() bool { return len(d.errs) >= maxFieldErrors }

func (d *decoder) fail(at *place, format string, args ...any) {
	if !d.full() {
		d.errs = append(d.errs, api.FieldError{Pointer: at.String(), Detail: fmt.Sprintf(format, args...)})
	}
}

// value reads raw, which is valid JSON without space around it, into v.
func (d *decoder) value(raw string, v reflect.Value, at *place) {
	if raw == "null" {
		return // as absent
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		d.value(raw, v.Elem(), at)
		return
	}
	k := kindOf(v.Type())
	if k.itself {
		if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON([]byte(raw)); err != nil { //nolint:forcetypeassert // so its type was found to be
			d.fail(at, "%s", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(raw, v, k.fields, at)
	case reflect.Map:
		d.mapping(raw, v, at)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			d.plain(raw, v, k, at)
			return
		}
		d.list(raw, v, at)
	default:
		d.plain(raw, v, k, at)
	}
}

func (d *decoder) object(raw string, v reflect.Value, fields map[string]*field, at *place) {
	if raw[0] != '{' {
		d.fail(at, "must be an object, not %s", describe(raw))
		return
	}
	given := make([]bool, len(fields))
	gjson.Parse(raw).ForEach(func(key, member gjson.Result) bool {
		name, value := unquote(key.Raw), member.Raw
		f, ok := fields[name]
		here := place{in: at}
		if ok {
			here.name = f.name
		}
		switch {
		case !ok:
			if !d.full() {
				here.name = name
				d.fail(&here, "is no field here%s", suggestion(here.name, slices.Collect(maps.Keys(fields))))
			}
		case given[f.number]:
			d.fail(&here, "is given twice")
		default:
			given[f.number] = true
			is, before := v.FieldByIndex(f.Index), len(d.errs)
			if d.value(value, is, &here); value == "null" || len(d.errs) > before {
				break
			}
			if why := api.ZeroRefused(f.StructField, is); why != "" {
				d.fail(&here, "%s", why)
			}
		}
		return true
	})
}

func (d *decoder) mapping(raw string, v reflect.Value, at *place) {
	if raw[0] != '{' {
		d.fail(at, "must be an object, not %s", describe(raw))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	gjson.Parse(raw).ForEach(func(name, value gjson.Result) bool {
		here := place{in: at, name: unquote(name.Raw)}
		key := reflect.ValueOf(here.name).Convert(v.Type().Key())
		if v.MapIndex(key).IsValid() {
			d.fail(&here, "is given twice")
			return true
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(value.Raw, item, &here)
		v.SetMapIndex(key, item)
		return true
	})
}

func (d *decoder) list(raw string, v reflect.Value, at *place) {
	if raw[0] != '[' {
		d.fail(at, "must be a list, not %s", describe(raw))
		return
	}
	items := gjson.Parse(raw)
	n := 0
	items.ForEach(func(_, _ gjson.Result) bool { n++; return true })
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	i := 0
	items.ForEach(func(_, item gjson.Result) bool {
		here := place{in: at, number: i, listed: true}
		d.value(item.Raw, v.Index(i), &here)
		i++
		return true
	})
}

func (d *decoder) plain(raw string, v reflect.Value, k *kind, at *place) {
	if v.Kind() == reflect.String && !k.text && raw[0] == '"' {
		v.SetString(strings.Clone(unquote(raw)))
		return
	}
	if json.Unmarshal([]byte(raw), v.Addr().Interface()) == nil {
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
	d.fail(at, "must be %s, not %s", want, describe(raw))
}

// describe says what a JSON value is, for people.
func describe(raw string) string {
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
		return raw
	}
	if len(raw) > 40 {
		return raw[:40] + "…"
	}
	return raw
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
