package layout

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// forbidden are words that tie the text to one machine or one network. They are put
// together from pieces so that this file does not find itself.
var forbidden = []struct{ Word, Why string }{
	{"/work" + "/", "a path of one machine"},
	{"/root" + "/", "a path of one machine"},
	{"/tmp" + "/tv", "a path of one machine"},
	{".." + "/shared", "a folder outside the project"},
	{"proxy." + "golang.org", "the host of a registry"},
	{"pypi" + ".org", "the host of a registry"},
	{"pythonhosted" + ".org", "the host of a registry"},
	{"registry." + "npmjs.org", "the host of a registry"},
	{"deb.debian" + ".org", "the host of a registry"},
}

func TestTextSpeaksOfTheProjectAlone(t *testing.T) {
	root, tracked, _ := tree(t)
	for _, name := range tracked {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not text
		}
		for _, problem := range textProblems(name, string(text)) {
			t.Error(problem)
		}
	}
}

func textProblems(name, text string) []string {
	var out []string
	for _, f := range forbidden {
		if i := strings.Index(text, f.Word); i >= 0 {
			line := 1 + strings.Count(text[:i], "\n")
			out = append(out, fmt.Sprintf("%s:%d: %q is %s", name, line, f.Word, f.Why))
		}
	}
	return out
}

// promises are the numbers of DESIGN's list, which docs/guarantees.md tells to users.
const promises = 11

func TestEveryPromiseIsTold(t *testing.T) {
	root, _, _ := tree(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= promises; n++ {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^#+ P%d\b`, n)).Match(text) {
			t.Errorf("docs/guarantees.md has no section on P%d", n)
		}
	}
}

// Code and tests cite the promises that they keep, so that whoever changes the code
// knows what must not break, and a citation of a promise that does not exist is a slip.
func TestPromisesAreCited(t *testing.T) {
	_, _, files := tree(t)
	cited := map[int]bool{}
	cite := regexp.MustCompile(`\bP(\d+)\b`)
	for _, f := range files {
		if In(f.Dir, "test/layout") {
			continue
		}
		for _, group := range f.Syntax.Comments {
			for _, m := range cite.FindAllStringSubmatch(group.Text(), -1) {
				var n int
				_, _ = fmt.Sscan(m[1], &n)
				// P50, P95 and P99 are percentiles; P256 is a curve.
				if n == 0 || n > promises && n < 50 {
					t.Errorf("%s cites P%d, which does not exist", f.Path, n)
				}
				cited[n] = true
			}
		}
	}
	for n := 1; n <= promises; n++ {
		if !cited[n] {
			t.Errorf("no code and no test cites P%d", n)
		}
	}
}

// A link to a file of this tree that is not there is the first thing a reader finds.
func TestLinksInDocsLead(t *testing.T) {
	root, tracked, _ := tree(t)
	link := regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	for _, name := range tracked {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			target := string(m[1])
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			at := filepath.Join(root, filepath.Dir(name), target)
			if _, err := os.Stat(at); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
			}
		}
	}
}

func TestReadmeIsShort(t *testing.T) {
	root, _, _ := tree(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n > 150 {
		t.Errorf("README.md has %d lines, at most 150", n)
	}
}

// One version everywhere: VERSION is what the binary says, and the release notes know
// it.
func TestVersionIsKnown(t *testing.T) {
	root, _, _ := tree(t)
	raw, err := os.ReadFile(filepath.Join(root, "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(string(raw))
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[a-z0-9.]+)?$`).MatchString(version) {
		t.Fatalf("VERSION holds %q, want a semantic version", version)
	}
	notes, err := os.ReadFile(filepath.Join(root, "docs", "releases.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(notes), strings.TrimSuffix(version, "-dev")) {
		t.Errorf("docs/releases.md does not mention %s", version)
	}
}
