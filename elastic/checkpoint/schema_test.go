package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schemaErrors checks a document against the keywords that our schema uses, and
// fails on a keyword that it does not know, so that none is ignored.
func schemaErrors(schema map[string]any, doc any, at string) []string {
	var out []string
	bad := func(format string, args ...any) { out = append(out, at+": "+fmt.Sprintf(format, args...)) }
	number, isNumber := doc.(json.Number)
	text, isText := doc.(string)
	list, isList := doc.([]any)
	object, isObject := doc.(map[string]any)
	for key, want := range schema {
		switch key {
		case "$schema", "$id", "title", "description":
		case "type":
			types, many := want.([]any)
			if !many {
				types = []any{want}
			}
			is := map[string]bool{
				"string": isText, "array": isList, "object": isObject, "null": doc == nil,
				"number": isNumber, "integer": isNumber && !strings.ContainsAny(number.String(), ".eE"),
			}
			if !slices.ContainsFunc(types, func(t any) bool { return is[t.(string)] }) {
				bad("%v is no %v", doc, want)
			}
		case "const":
			if fmt.Sprint(doc) != fmt.Sprint(want) {
				bad("%v is not %v", doc, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), doc) {
				bad("%v is none of %v", doc, want)
			}
		case "pattern":
			if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
				bad("%q does not match %s", text, want)
			}
		case "maxLength":
			if n, _ := want.(json.Number).Int64(); isText && int64(len(text)) > n {
				bad("%d bytes", len(text))
			}
		case "minItems":
			if n, _ := want.(json.Number).Int64(); isList && int64(len(list)) < n {
				bad("%d items", len(list))
			}
		case "maxItems":
			if n, _ := want.(json.Number).Int64(); isList && int64(len(list)) > n {
				bad("%d items", len(list))
			}
		case "minimum", "maximum":
			limit, _ := want.(json.Number).Float64()
			if v, err := number.Float64(); isNumber && err == nil && (key == "minimum" && v < limit || key == "maximum" && v > limit) {
				bad("%v is beyond %s %v", doc, key, want)
			}
		case "required":
			for _, k := range want.([]any) {
				if _, ok := object[k.(string)]; isObject && !ok {
					bad("%s is missing", k)
				}
			}
		case "additionalProperties":
			for k := range object {
				if _, ok := schema["properties"].(map[string]any)[k]; !ok && want == false {
					bad("%s is unknown", k)
				}
			}
		case "properties":
			for k, sub := range want.(map[string]any) {
				if v, ok := object[k]; ok {
					out = append(out, schemaErrors(sub.(map[string]any), v, at+"/"+k)...)
				}
			}
		case "items":
			for i, v := range list {
				out = append(out, schemaErrors(want.(map[string]any), v, fmt.Sprintf("%s/%d", at, i))...)
			}
		default:
			bad("the test does not know the keyword %s", key)
		}
	}
	return out
}

func decode(t *testing.T, data []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSchemaDescribesTheManifest(t *testing.T) {
	schema := decode(t, Schema)
	parent := int64(3)
	reports := preparedAll("digits", 5, math.MaxUint64, 3)
	reports[0].Cursor, reports[1].Config, reports[2].Frameworks = `{"a":1}`, "abc", "torch"
	for _, p := range []*int64{nil, &parent} {
		data, _ := mustBuild(t, reports, p)
		if errs := schemaErrors(schema, decode(t, data), ""); len(errs) > 0 {
			t.Errorf("a manifest breaks its schema: %v", errs)
		}
	}
	for what, spoil := range map[string]func(map[string]any){
		"version":  func(d map[string]any) { d["version"] = json.Number("2") },
		"missing":  func(d map[string]any) { delete(d, "life") },
		"unknown":  func(d map[string]any) { d["more"] = true },
		"no files": func(d map[string]any) { d["files"] = []any{} },
		"path":     func(d map[string]any) { d["files"].([]any)[0].(map[string]any)["path"] = "../x" },
		"part":     func(d map[string]any) { d["files"].([]any)[0].(map[string]any)["part"] = "weights" },
		"negative": func(d map[string]any) { d["step"] = json.Number("-1") },
		"run":      func(d map[string]any) { d["run"] = "../x" },
		"type":     func(d map[string]any) { d["parent"] = "3" },
	} {
		data, _ := mustBuild(t, reports, nil)
		doc := decode(t, data)
		spoil(doc)
		if errs := schemaErrors(schema, doc, ""); len(errs) == 0 {
			t.Errorf("%s: the schema takes it", what)
		}
	}
	// Every field of the types stands in the schema, and none more.
	files := schema["properties"].(map[string]any)["files"].(map[string]any)["items"].(map[string]any)
	for _, c := range []struct {
		schema map[string]any
		typ    reflect.Type
	}{{schema, reflect.TypeFor[Manifest]()}, {files, reflect.TypeFor[File]()}} {
		var fields []string
		for f := range c.typ.Fields() {
			if name, rest, _ := strings.Cut(f.Tag.Get("json"), ","); rest == "" { // others may be absent
				fields = append(fields, name)
			}
		}
		var required []string
		for _, k := range c.schema["required"].([]any) {
			required = append(required, k.(string))
		}
		if !slices.Equal(fields, required) || len(c.schema["properties"].(map[string]any)) != c.typ.NumField() {
			t.Errorf("%s has fields %v, the schema requires %v", c.typ, fields, required)
		}
	}
}
