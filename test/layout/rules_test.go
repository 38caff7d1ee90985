package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"sort"
	"strings"
	"testing"
)

// Every package says what lives in it (DESIGN: layout).
func TestPackagesHaveDocs(t *testing.T) {
	_, _, files := tree(t)
	for _, problem := range docProblems(files) {
		t.Error(problem)
	}
}

func docProblems(files []*File) []string {
	docs := map[string]string{}
	dirs := map[string]bool{}
	for _, f := range files {
		if f.Test || f.Tags == "depsprobe" {
			continue
		}
		dirs[f.Dir] = true
		if f.Syntax.Doc != nil {
			docs[f.Dir] += f.Syntax.Doc.Text()
		}
	}
	var out []string
	for dir := range dirs {
		switch doc := docs[dir]; {
		case doc == "":
			out = append(out, dir+": no package comment")
		case len(strings.Fields(doc)) < 10:
			out = append(out, dir+": the package comment should say what lives here and what may not: "+strings.TrimSpace(doc))
		}
	}
	sort.Strings(out)
	return out
}

// clockCalls read or wait on the machine's time.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// A replica that looks at the clock, draws a number or reads its environment drifts
// from the others (I7).
func TestPurePackagesHaveNoClock(t *testing.T) {
	_, _, files := tree(t)
	for _, f := range files {
		if isPure(f) {
			for _, problem := range clockProblems(f) {
				t.Error(problem)
			}
		}
	}
}

func clockProblems(f *File) []string {
	var out []string
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch importOf(f, id.Name) {
		case "time":
			if slices.Contains(clockCalls, sel.Sel.Name) {
				out = append(out, fmt.Sprintf("%s: time.%s in a pure package", f.At(n.Pos()), sel.Sel.Name))
			}
		case "os":
			out = append(out, fmt.Sprintf("%s: os.%s in a pure package", f.At(n.Pos()), sel.Sel.Name))
		}
		return true
	})
	return out
}

// importOf returns the import path that a package name stands for in the file.
func importOf(f *File, name string) string {
	for _, spec := range f.Syntax.Imports {
		p := strings.Trim(spec.Path.Value, `"`)
		local := p[strings.LastIndex(p, "/")+1:]
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == name {
			return p
		}
	}
	return ""
}

// Tests wait for a condition; a test that sleeps is either slow or flaky.
func TestTestsDoNotSleep(t *testing.T) {
	_, _, files := tree(t)
	for _, f := range files {
		if !f.Test {
			continue
		}
		for _, problem := range sleepProblems(f) {
			t.Error(problem)
		}
	}
}

// sleepProblems allows time.Sleep in two places: in a testing/synctest bubble, where it
// costs nothing and moves the virtual clock, and in the poll of a wait helper, which is
// a loop. A sleep outside both is a guess about how fast the machine is.
func sleepProblems(f *File) []string {
	if slices.Contains(f.Imports(), "testing/synctest") {
		return nil
	}
	var out []string
	depth := 0
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			depth++
			ast.Inspect(n.Body, visit)
			depth--
			return false
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" || depth > 0 {
				return true
			}
			if id, ok := sel.X.(*ast.Ident); ok && importOf(f, id.Name) == "time" {
				out = append(out, f.At(n.Pos())+": time.Sleep in a test; wait for a condition and report the last state")
			}
		}
		return true
	}
	ast.Inspect(f.Syntax, visit)
	return out
}

// The state machine's answers must not depend on the order of a map, which differs
// from replica to replica. Ranging over one is fine only to fill another map, to
// count, or to collect keys that are sorted before use; the check below accepts a
// range whose function also sorts, or that carries a comment with the word "order".
func TestStateRangesOverMapsInOrder(t *testing.T) {
	_, _, files := tree(t)
	for _, f := range files {
		if !f.Test && In(f.Dir, "head/state") {
			for _, problem := range mapRangeProblems(f) {
				t.Error(problem)
			}
		}
	}
}

func mapRangeProblems(f *File) []string {
	var out []string
	for _, decl := range f.Syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		maps := mapNames(fn)
		sorts := callsSort(fn)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			r, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			id, ok := r.X.(*ast.Ident)
			if !ok || !maps[id.Name] || sorts || explained(f, r.Pos()) {
				return true
			}
			out = append(out, fmt.Sprintf("%s: %s ranges over the map %s without sorting; sort its keys, or say in a comment why order cannot matter",
				f.At(r.Pos()), fn.Name.Name, id.Name))
			return true
		})
	}
	return out
}

// mapNames finds the names that the function itself shows to be maps. Without types
// this misses maps that come from elsewhere; replay tests of head/state catch those.
func mapNames(fn *ast.FuncDecl) map[string]bool {
	names := map[string]bool{}
	if fn.Type.Params != nil {
		for _, field := range fn.Type.Params.List {
			if _, ok := field.Type.(*ast.MapType); ok {
				for _, n := range field.Names {
					names[n.Name] = true
				}
			}
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, lhs := range n.Lhs {
				id, ok := lhs.(*ast.Ident)
				if ok && i < len(n.Rhs) && isMap(n.Rhs[i]) {
					names[id.Name] = true
				}
			}
		case *ast.ValueSpec:
			if _, ok := n.Type.(*ast.MapType); ok {
				for _, id := range n.Names {
					names[id.Name] = true
				}
			}
		}
		return true
	})
	return names
}

func isMap(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		_, ok := e.Type.(*ast.MapType)
		return ok
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "make" && len(e.Args) > 0 {
			_, ok := e.Args[0].(*ast.MapType)
			return ok
		}
	}
	return false
}

func callsSort(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && (id.Name == "sort" || id.Name == "slices" && strings.HasPrefix(sel.Sel.Name, "Sort")) {
				found = true
			}
		}
		return !found
	})
	return found
}

func explained(f *File, pos token.Pos) bool {
	line := f.Set.Position(pos).Line
	for _, group := range f.Syntax.Comments {
		if end := f.Set.Position(group.End()).Line; end == line || end == line-1 {
			if strings.Contains(group.Text(), "order") {
				return true
			}
		}
	}
	return false
}

// maxLines bounds a file of source. Who cannot explain a file in one sentence should
// split it.
const maxLines = 500

// long lists files that may exceed maxLines, each with the reason.
var long = map[string]string{}

func TestFilesStayReadable(t *testing.T) {
	_, _, files := tree(t)
	for _, f := range files {
		if f.Test || f.Gen || f.Lines <= maxLines || long[f.Path] != "" {
			continue
		}
		t.Errorf("%s has %d lines, at most %d: split it by concept", f.Path, f.Lines, maxLines)
	}
	for name := range long {
		if !slices.ContainsFunc(files, func(f *File) bool { return f.Path == name && f.Lines > maxLines }) {
			t.Errorf("%s is listed as long and is not: remove it from the list", name)
		}
	}
}
