package layout

import (
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
)

// Each check is shown one tree that breaks its rule; a check that cannot fail proves
// nothing.

func source(t *testing.T, name, text string) *File {
	t.Helper()
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return &File{
		Path: name, Dir: path.Dir(name), Test: strings.HasSuffix(name, "_test.go"),
		Tags: buildTags(syntax), Lines: strings.Count(text, "\n"), Syntax: syntax, Set: set,
	}
}

func one(t *testing.T, got []string, want string) {
	t.Helper()
	if len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("got %q, want one problem that says %q", got, want)
	}
}

func TestDirectionCheckFollowsIndirectImports(t *testing.T) {
	files := []*File{
		source(t, "head/api/a.go", `package api; import _ "`+Module+`/elastic/x"`),
		source(t, "elastic/x/x.go", "package x; import _ \""+Module+"/runtime/y\""),
		source(t, "runtime/y/y.go", "package y"),
		source(t, "worker/agent/w.go", "package agent"),
	}
	if got := directionProblems(Imports(files)); len(got) != 0 {
		t.Fatalf("a clean tree has problems: %q", got)
	}
	files = append(files, source(t, "elastic/x/bad.go", "//go:build odd\n\npackage x; import _ \""+Module+"/worker/agent\""))
	got := directionProblems(Imports(files))
	if len(got) != 2 || !strings.Contains(strings.Join(got, "\n"), "head/api → elastic/x → worker/agent") {
		t.Errorf("got %q, want the chain from head/api to worker/agent and the one from elastic/x", got)
	}
}

func TestPurityCheck(t *testing.T) {
	helper := source(t, "runtime/help/h.go", `package help; import _ "github.com/nats-io/nats.go"`)
	one(t, purityProblems([]*File{
		source(t, "head/schedule/s.go", `package schedule; import _ "`+Module+`/runtime/help"`), helper,
	}), "head/schedule → runtime/help → github.com/nats-io/nats.go")
	one(t, purityProblems([]*File{source(t, "head/state/s.go", `package state; import _ "math/rand/v2"`)}), "math/rand/v2")
	if got := purityProblems([]*File{
		source(t, "head/state/s.go", `package state; import _ "network"`),
		source(t, "head/state/s_test.go", `package state; import _ "os/exec"`),
	}); len(got) != 0 {
		t.Errorf("got %q, want none: tests may, and net is not a prefix of network", got)
	}
}

func TestImporterCheck(t *testing.T) {
	one(t, importerProblems([]*File{
		source(t, "runtime/wire/w.go", `package wire; import _ "github.com/vmihailenco/msgpack/v5"`),
		source(t, "head/api/a_test.go", `package api; import _ "github.com/vmihailenco/msgpack/v5"`),
	}), "head/api/a_test.go imports")
}

func TestClockCheck(t *testing.T) {
	f := source(t, "head/state/s.go", `package state
import ( clk "time"; "os" )
var _ = clk.Now
var _ clk.Time
var _ = os.Getenv("X")
`)
	got := clockProblems(f)
	if len(got) != 2 || !strings.Contains(got[0], "s.go:3: time.Now") || !strings.Contains(got[1], "os.Getenv") {
		t.Errorf("got %q, want time.Now on line 3 and os.Getenv", got)
	}
}

func TestSleepCheck(t *testing.T) {
	one(t, sleepProblems(source(t, "a/a_test.go", `package a
import "time"
func f() { for { time.Sleep(1) } }
func g() { time.Sleep(1) }
`)), "a_test.go:4")
	if got := sleepProblems(source(t, "a/a_test.go", `package a
import ( "time"; _ "testing/synctest" )
func g() { time.Sleep(1) }
`)); len(got) != 0 {
		t.Errorf("got %q, want none in a bubble", got)
	}
}

func TestMapRangeCheck(t *testing.T) {
	one(t, mapRangeProblems(source(t, "head/state/s.go", `package state
func bad(m map[string]int) (out []string) { for k := range m { out = append(out, k) }; return }
func sorted(m map[string]int) (out []string) { for k := range m { out = append(out, k) }; sort.Strings(out); return }
func told(m map[string]int) (n int) {
	// A sum: the order cannot matter.
	for _, v := range m { n += v }
	return
}
func list(m []int) { for range m {} }
`)), "bad ranges over the map m")
}

func TestDocCheck(t *testing.T) {
	one(t, docProblems([]*File{
		source(t, "a/a.go", "// Package a holds one thing and one thing only, and never holds two.\npackage a"),
		source(t, "b/b.go", "package b"),
	}), "b: no package comment")
	one(t, docProblems([]*File{source(t, "c/c.go", "// Package c is c.\npackage c")}), "should say what lives here")
}

func TestTextCheck(t *testing.T) {
	one(t, textProblems("a.md", "fine\nsee "+forbidden[0].Word+"x\n"), "a.md:2")
}
