// Package layout checks the shape of the tree: who may import whom, that every
// package says what it is, that pure packages stay pure, and that the project's text
// speaks of itself alone. It parses source files and never builds or fetches
// anything, so it runs first and anywhere. Rules about one package belong beside
// that package.
package layout

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Module is the import path of this module.
const Module = "github.com/troupe-runtime/troupe"

// File is one parsed Go file. Path is relative to the root, with slashes.
type File struct {
	Path   string
	Dir    string // "head/state"; "." for the root
	Test   bool
	Tags   string // the expression of its //go:build line, if any
	Lines  int
	Gen    bool // a generated file
	Syntax *ast.File
	Set    *token.FileSet
}

// Imports lists the paths that the file imports.
func (f *File) Imports() []string {
	var out []string
	for _, spec := range f.Syntax.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// At prints the position of a node as path:line.
func (f *File) At(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.Path, f.Set.Position(pos).Line)
}

// Root finds the folder that holds go.mod, from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Tracked lists the files that git would commit, relative to root. Outside a
// repository (a source archive) it lists every file.
func Tracked(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return walk(root)
	}
	var files []string
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if len(name) == 0 {
			continue
		}
		// A file may be deleted in the working tree and still be in the index.
		if _, err := os.Lstat(filepath.Join(root, string(name))); err == nil {
			files = append(files, string(name))
		}
	}
	sort.Strings(files)
	return slices.Compact(files), nil
}

func walk(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		files = append(files, filepath.ToSlash(rel))
		return nil
	})
	return files, err
}

// Parse reads every Go file among files, comments included.
func Parse(root string, files []string) ([]*File, error) {
	var out []*File
	for _, name := range files {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "/testdata/") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		out = append(out, &File{
			Path: name, Dir: path.Dir(name), Test: strings.HasSuffix(name, "_test.go"),
			Tags: buildTags(syntax), Lines: bytes.Count(src, []byte("\n")),
			Gen: ast.IsGenerated(syntax), Syntax: syntax, Set: set,
		})
	}
	return out, nil
}

func buildTags(f *ast.File) string {
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			break
		}
		for _, c := range group.List {
			if rest, ok := strings.CutPrefix(c.Text, "//go:build "); ok {
				return rest
			}
		}
	}
	return ""
}

// Graph is the import graph of the module's own packages: folder → folders.
type Graph map[string][]string

// Imports builds the graph from files that are not tests. Files of every build tag
// count: a forbidden import behind a tag is forbidden too.
func Imports(files []*File) Graph {
	g := Graph{}
	for _, f := range files {
		if f.Test {
			continue
		}
		if _, ok := g[f.Dir]; !ok {
			g[f.Dir] = nil
		}
		for _, imp := range f.Imports() {
			if rest, ok := strings.CutPrefix(imp, Module+"/"); ok && !slices.Contains(g[f.Dir], rest) {
				g[f.Dir] = append(g[f.Dir], rest)
			}
		}
	}
	return g
}

// PathTo returns a chain of imports from one folder to the first that bad accepts,
// or nil. The chain is what a person needs to see why an indirect import exists.
func (g Graph) PathTo(from string, bad func(dir string) bool) []string {
	seen := map[string]bool{from: true}
	queue := [][]string{{from}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		next := slices.Clone(g[chain[len(chain)-1]])
		sort.Strings(next)
		for _, dir := range next {
			if seen[dir] {
				continue
			}
			seen[dir] = true
			grown := append(slices.Clone(chain), dir)
			if bad(dir) {
				return grown
			}
			queue = append(queue, grown)
		}
	}
	return nil
}

// In reports whether dir is folder or lies under it.
func In(dir, folder string) bool {
	return dir == folder || strings.HasPrefix(dir, folder+"/")
}
