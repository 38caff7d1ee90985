package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxJobFile bounds a job file.
const maxJobFile = 1 << 20

// onceKey is a key made of the request: the same request is the same job.
func onceKey(s api.JobSpec) string {
	s.Owner, s.LaunchEnv = nil, ""
	b, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return "once-" + hex.EncodeToString(sum[:16])
}

func (a *app) submitCommand() *cobra.Command {
	var wait bool
	var o jobFlags
	c := &cobra.Command{
		Use: "submit FILE", Short: "Submit a job that a YAML file describes", Args: cobra.ExactArgs(1),
		Example: "  troupe submit job.yaml\n  troupe submit job.yaml --wait\n  troupe submit job.yaml --once -o json\n  troupe submit job.yaml --working-dir .",
		RunE: func(c *cobra.Command, args []string) error {
			if o.once && o.key != "" {
				return usage("--once and --idempotency-key exclude each other")
			}
			s, send, err := readJobFile(args[0])
			if err != nil {
				return err
			}
			if c.Flags().Changed("working-dir") {
				send = o.sendDir
			}
			switch {
			case send != "":
				if o.sent, err = a.packFolder(c.Context(), send, o.sendLimit); err != nil {
					return err
				}
				if err := a.usePackage(&s, o.sent, s.WorkingDir, nil, s.Command); err != nil {
					return err
				}
			case s.Package != "":
			case s.WorkingDir == "":
				if s.WorkingDir, err = filepath.Abs(filepath.Dir(args[0])); err != nil {
					return fmt.Errorf("find the folder of %s: %w", args[0], err)
				}
			}
			if s.Package == "" && len(s.Command) > 0 {
				if err := checkCommand(s.WorkingDir, s.Command); err != nil {
					return err
				}
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			j, err := a.submit(c.Context(), cl, s, o.sent, o.keyOf(s))
			if err != nil {
				return err
			}
			a.noteRepeat(j)
			if !wait {
				a.one(j, j.ID, func() { _, _ = fmt.Fprintln(a.out, j.ID) })
				a.note("follow it with: troupe job logs -f %s", j.ID)
				return nil
			}
			a.note("job %s; Ctrl-C stops waiting, the job goes on", j.ID)
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			id := j.ID
			if j, err = cl.WaitJob(ctx, id, nil); err != nil {
				if errors.Is(err, context.Canceled) {
					a.note("the job goes on. Stop it with: troupe job stop %s", id)
					return &exitError{code: api.ExitInterrupted}
				}
				return err
			}
			a.one(j, j.ID, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", j.ID, j.State) })
			return exitOf(j)
		},
	}
	o.addSend(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait for the end and exit with the job's code")
	c.Flags().StringVar(&o.key, "idempotency-key", "", "`key`: a repeat under the same answers with the first job")
	c.Flags().BoolVar(&o.once, "once", false, "use a key made of the request itself: the same request is one job")
	return c
}

// jobFile is what a job file may say: the spec, and a folder to send along.
type jobFile struct {
	api.JobSpec
	// Send is relative to the folder of the file.
	Send string `json:"working_dir,omitempty"`
}

// readJobFile reads a job's spec, and the folder that is to be sent along if there is one.
// Every complaint names file, line and column.
func readJobFile(path string) (s api.JobSpec, send string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, "", fmt.Errorf("read the job file: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxJobFile+1))
	if err != nil {
		return s, "", fmt.Errorf("read the job file: %w", err)
	}
	if len(data) > maxJobFile {
		return s, "", malformed("troupe submit --help", "%s is larger than %s", path, bytesText(maxJobFile))
	}
	var file jobFile
	if err := decodeJob(path, data, &file); err != nil {
		return s, "", err
	}
	if s, send = file.JobSpec, file.Send; send != "" && !filepath.IsAbs(send) {
		send = filepath.Join(filepath.Dir(path), send)
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	return s, send, nil
}

// decodeJob walks the YAML tree against the spec's JSON names, so that a wrong name
// or type is told at its place, and then decodes through JSON: one set of field names
// and one way to read quantities.
func decodeJob(path string, data []byte, s *jobFile) (err error) {
	defer func() {
		if x, ok := errors.AsType[*exitError](err); ok {
			x.help = "troupe submit --help"
		}
	}()
	doc, err := yamlDocument(path, data, "")
	if err != nil {
		return err
	}
	tree, err := plainTree(path, doc, reflect.TypeFor[jobFile](), 0)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return malformed("troupe submit --help", "%s: %v", path, err)
	}
	if err := json.Unmarshal(raw, s); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return malformed("troupe submit --help", "%s: %s: %s is not a %s", path, te.Field, te.Value, te.Type)
		}
		return malformed("troupe submit --help", "%s: %v", path, err)
	}
	return nil
}

func at(path string, n *yaml.Node, format string, args ...any) error {
	return malformed("troupe submit --help", "%s:%d:%d: %s", path, n.Line, n.Column, fmt.Sprintf(format, args...))
}

// maxYAMLDepth keeps aliases and nesting from growing without end.
const maxYAMLDepth = 32

// plainTree turns a YAML node into what JSON can hold, checking names against t.
func plainTree(path string, n *yaml.Node, t reflect.Type, depth int) (any, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > maxYAMLDepth {
		return nil, at(path, n, "nested more than %d deep", maxYAMLDepth)
	}
	if readsItself(t) && n.Kind == yaml.MappingNode {
		t = reflect.TypeFor[map[string]int64]()
	}
	switch n.Kind {
	case yaml.AliasNode:
		return nil, at(path, n, "aliases are not taken; write the value out")
	case yaml.MappingNode:
		return plainMap(path, n, t, depth)
	case yaml.SequenceNode:
		if t.Kind() != reflect.Slice {
			return nil, at(path, n, "a list, where %s belongs", kindText(t))
		}
		out := make([]any, 0, len(n.Content))
		for _, c := range n.Content {
			v, err := plainTree(path, c, t.Elem(), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.ScalarNode:
		return plainScalar(path, n, t)
	case yaml.DocumentNode, yaml.StreamNode:
	}
	return nil, at(path, n, "this is not a value")
}

// readsItself: the type has a JSON form of its own, which its fields do not show.
func readsItself(t reflect.Type) bool {
	return t.Kind() != reflect.Struct && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) && !isUnit(t)
}

// isUnit: a quantity, which is written with its unit.
func isUnit(t reflect.Type) bool {
	return t.PkgPath() != "" && strings.HasSuffix(t.PkgPath(), "/unit")
}

func plainMap(path string, n *yaml.Node, t reflect.Type, depth int) (any, error) {
	if t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
		return nil, at(path, n, "a mapping, where %s belongs", kindText(t))
	}
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if _, twice := out[k.Value]; twice {
			return nil, at(path, k, "%q stands here twice", k.Value)
		}
		var field reflect.StructField
		if field.Type = t; t.Kind() == reflect.Map {
			field.Type = t.Elem()
		} else {
			var names []string
			var ok bool
			if field, ok = fieldOf(t, k.Value, &names); !ok {
				return nil, at(path, k, "unknown field %q%s", k.Value, didYouMean(k.Value, names))
			}
		}
		x, err := plainTree(path, v, field.Type, depth+1)
		if err != nil {
			return nil, err
		}
		if why := zeroRefused(field, x); why != "" {
			return nil, at(path, v, "%s %s", k.Value, why)
		}
		out[k.Value] = x
	}
	return out, nil
}

// zeroRefused says what is wrong with a value that is nothing, where a field has a default.
func zeroRefused(f reflect.StructField, x any) string {
	if x == nil || f.Tag.Get("usual") == "" {
		return ""
	}
	v := reflect.New(f.Type)
	raw, err := json.Marshal(x)
	if err != nil || json.Unmarshal(raw, v.Interface()) != nil {
		return "" // it is told elsewhere
	}
	return api.ZeroRefused(f, v.Elem())
}

// fieldOf finds a struct's field by its JSON name.
func fieldOf(t reflect.Type, name string, names *[]string) (reflect.StructField, bool) {
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			if found, ok := fieldOf(f.Type, name, names); ok {
				return found, true
			}
			continue
		}
		*names = append(*names, tag)
		if tag == name && name != "owner" && name != "launchEnv" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func plainScalar(path string, n *yaml.Node, t reflect.Type) (any, error) {
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, at(path, n, "%v", err)
	}
	if t == reflect.TypeFor[time.Time]() {
		if _, err := time.Parse(time.RFC3339, n.Value); err != nil {
			return nil, at(path, n, "%q, where a time like 2026-01-31T12:00:00Z belongs", n.Value)
		}
		return n.Value, nil
	}
	switch t.Kind() {
	case reflect.String:
		return n.Value, nil // 1.0 and yes stay what was written
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return nil, at(path, n, "%q, where true or false belongs", n.Value)
		}
	case reflect.Int64, reflect.Uint64:
		if isUnit(t) {
			quoted, err := json.Marshal(n.Value)
			if err == nil {
				err = json.Unmarshal(quoted, reflect.New(t).Interface())
			}
			if err != nil {
				return nil, at(path, n, "%v", err)
			}
			return n.Value, nil
		}
		switch v.(type) {
		case int, int64, uint64:
		default:
			return nil, at(path, n, "%q, where a whole number belongs", n.Value)
		}
	case reflect.Float64:
		switch v.(type) {
		case int, int64, uint64, float64:
		default:
			return nil, at(path, n, "%q, where a number belongs", n.Value)
		}
	default:
		if v != nil {
			return nil, at(path, n, "%q, where %s belongs", n.Value, kindText(t))
		}
	}
	return v, nil
}

func kindText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	}
	return "a number"
}
