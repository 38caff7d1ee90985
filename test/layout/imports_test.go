package layout

import (
	"slices"
	"sort"
	"strings"
	"testing"
)

// tree is the parsed module, read once for all tests of the package.
func tree(t *testing.T) (root string, tracked []string, files []*File) {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if tracked, err = Tracked(root); err != nil {
		t.Fatal(err)
	}
	if files, err = Parse(root, tracked); err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d Go files under %s; the checks would prove nothing", len(files), root)
	}
	return root, tracked, files
}

// within is one rule: packages under From reach nothing under any of Never, directly
// or through others.
type within struct {
	From  string
	Never []string
	Why   string
}

var directions = []within{
	{"head", []string{"worker", "sdk", "cmd"}, "head and worker never import each other"},
	{"worker", []string{"head", "sdk", "cmd"}, "head and worker never import each other"},
	{"runtime", []string{"head", "worker", "sdk", "cmd", "elastic"}, "what is shared knows neither side"},
	{"elastic", []string{"head", "worker", "sdk", "cmd"}, "elastic is used by both sides"},
	{"sdk", []string{"head", "worker", "elastic", "cmd"}, "sdk imports only runtime"},
}

// pure packages decide; what they decide about comes in as arguments. So the whole
// cluster can be simulated, and a replica can replay its log (I7).
var pure = []string{"head/state", "head/schedule", "elastic/supervise", "elastic/plan"}

// pureFiles decide too, in packages that also have a store: what a manifest says must
// be the same wherever it is written.
var pureFiles = []string{"elastic/checkpoint/manifest.go", "elastic/checkpoint/names.go"}

// isPure reports whether the file may know no clock, disk or network.
func isPure(f *File) bool {
	return !f.Test && (slices.Contains(pureFiles, f.Path) ||
		slices.ContainsFunc(pure, func(p string) bool { return In(f.Dir, p) }))
}

// outside lists what no pure package may reach, by prefix of the import path.
var outside = []string{
	"github.com/nats-io", "github.com/hashicorp/raft", "os/exec", "net", "math/rand", "crypto/rand",
	Module + "/runtime/bus", Module + "/runtime/clock", Module + "/runtime/disk", Module + "/runtime/simnet",
	Module + "/head/consensus",
}

// only lists modules that one folder alone may import.
var only = map[string]string{
	"github.com/vmihailenco/msgpack": "runtime/wire",
	"github.com/NVIDIA/go-nvml":      "worker/gpu",
	"github.com/hashicorp/raft":      "head/consensus",
	"github.com/hashicorp/raft-wal":  "head/consensus",
	"github.com/tidwall/btree":       "head/state",
	"github.com/spf13/cobra":         "cmd/troupe",
	"github.com/aws":                 "elastic/checkpoint/store",
	"gonum.org":                      "head/simulate/picture",
}

// hasPrefix compares whole path elements: net is not a prefix of net2.
func hasPrefix(imp, prefix string) bool {
	return imp == prefix || strings.HasPrefix(imp, prefix+"/")
}

func TestImportDirections(t *testing.T) {
	_, _, files := tree(t)
	for _, problem := range directionProblems(Imports(files)) {
		t.Error(problem)
	}
}

func directionProblems(g Graph) []string {
	var out []string
	for _, dir := range sorted(g) {
		for _, rule := range directions {
			if !In(dir, rule.From) {
				continue
			}
			chain := g.PathTo(dir, func(d string) bool {
				return slices.ContainsFunc(rule.Never, func(n string) bool { return In(d, n) })
			})
			if chain != nil {
				out = append(out, strings.Join(chain, " → ")+": "+rule.Why)
			}
		}
	}
	return out
}

// The shim is small: of the bus it links the client alone.
func TestShimLinksNoServer(t *testing.T) {
	_, _, files := tree(t)
	big := []string{"runtime/bus", "head", "elastic/supervise", "worker/gpu", "worker/agent"}
	chain := Imports(files).PathTo("cmd/troupe-shim", func(d string) bool {
		return slices.Contains(big, d) || In(d, "head")
	})
	if chain != nil {
		t.Error(strings.Join(chain, " → "))
	}
}

func sorted(g Graph) []string {
	var dirs []string
	for dir := range g {
		dirs = append(dirs, dir)
	}
	sort.Strings(dirs)
	return dirs
}

func TestPurePackagesReachNoOutside(t *testing.T) {
	_, _, files := tree(t)
	for _, problem := range purityProblems(files) {
		t.Error(problem)
	}
}

// purityProblems follows imports through the module, because a helper that imports
// the bus makes its importer impure as well.
func purityProblems(files []*File) []string {
	g := Imports(files)
	reaches := map[string]string{} // folder → the outside import it has
	for _, f := range files {
		if f.Test {
			continue
		}
		for _, imp := range f.Imports() {
			for _, o := range outside {
				if hasPrefix(imp, o) {
					reaches[f.Dir] = imp
				}
			}
		}
	}
	var out []string
	for _, f := range files {
		if !slices.Contains(pureFiles, f.Path) {
			continue
		}
		for _, imp := range f.Imports() {
			if slices.ContainsFunc(outside, func(o string) bool { return hasPrefix(imp, o) }) {
				out = append(out, f.Path+" imports "+imp+": this file is pure")
			}
		}
	}
	for _, dir := range sorted(g) {
		if !slices.ContainsFunc(pure, func(p string) bool { return In(dir, p) }) {
			continue
		}
		if imp, ok := reaches[dir]; ok {
			out = append(out, dir+" imports "+imp+": pure packages take time, ids and randomness as arguments")
			continue
		}
		chain := g.PathTo(dir, func(d string) bool { return reaches[d] != "" })
		if chain != nil {
			out = append(out, strings.Join(chain, " → ")+" → "+reaches[chain[len(chain)-1]]+": not allowed below a pure package")
		}
	}
	return out
}

func TestOneImporter(t *testing.T) {
	_, _, files := tree(t)
	for _, problem := range importerProblems(files) {
		t.Error(problem)
	}
}

func importerProblems(files []*File) []string {
	var out []string
	for _, f := range files {
		if f.Tags == "depsprobe" {
			continue
		}
		for _, imp := range f.Imports() {
			for module, owner := range only {
				if hasPrefix(imp, module) && !In(f.Dir, owner) {
					out = append(out, f.Path+" imports "+imp+": only "+owner+" may")
				}
			}
		}
	}
	sort.Strings(out)
	return out
}

// The shim runs once for each allocation and must stay under 8 MB, so it links no
// server, no consensus and no command-line library.
func TestShimStaysSmall(t *testing.T) {
	_, _, files := tree(t)
	g := Imports(files)
	if _, ok := g["cmd/troupe-shim"]; !ok {
		t.Fatal("cmd/troupe-shim has no Go files")
	}
	heavy := map[string]string{}
	for _, f := range files {
		for _, imp := range f.Imports() {
			for _, h := range []string{
				"github.com/nats-io/nats-server", "github.com/hashicorp", "github.com/spf13", "github.com/danielgtaylor",
				"github.com/NVIDIA", "github.com/aws", "net/http", "html/template",
			} {
				if !f.Test && hasPrefix(imp, h) {
					heavy[f.Dir] = imp
				}
			}
		}
	}
	if chain := g.PathTo("cmd/troupe-shim", func(d string) bool { return heavy[d] != "" }); chain != nil {
		t.Errorf("%s → %s", strings.Join(chain, " → "), heavy[chain[len(chain)-1]])
	}
}
