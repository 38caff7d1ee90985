package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// IgnoreFile is the file in a folder that says what is not packed.
const IgnoreFile = ".troupeignore"

const (
	maxIgnoreFile = 64 << 10
	maxRules      = 1000
	maxWildcards  = 8 // "**" in one rule: matching tries each at every depth
)

// Defaults are the rules that stand before those of the folder, which can take them back
// with "!".
var Defaults = []string{
	".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/",
	".ipynb_checkpoints/", "node_modules/", ".DS_Store", "*.swp",
}

// rule is one line of an ignore file.
type rule struct {
	keep     bool     // "!": what it matches is packed after all
	folders  bool     // ends in "/": folders only
	elements []string // of the pattern; a rule without a slash inside begins with "**"
}

// rules decide by the last one that matches, as in git.
type rules []rule

func defaultRules() rules {
	var rs rules
	for _, line := range Defaults {
		r, _, err := parseRule(line)
		if err != nil {
			panic(err) // a constant of this file
		}
		rs = append(rs, r)
	}
	return rs
}

// readRules reads the ignore file of a folder, if there is one.
func readRules(root *os.Root) (rules, error) {
	rs := defaultRules()
	f, err := root.Open(IgnoreFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rs, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", IgnoreFile, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", IgnoreFile, err)
	}
	if len(data) > maxIgnoreFile {
		return nil, over("%s has more than %d bytes", IgnoreFile, maxIgnoreFile)
	}
	line := 0
	for raw := range bytes.Lines(data) {
		line++
		r, ok, err := parseRule(string(raw))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w: %w", IgnoreFile, line, ErrRule, err)
		}
		if !ok {
			continue
		}
		if rs = append(rs, r); len(rs) > maxRules {
			return nil, over("%s has more than %d rules", IgnoreFile, maxRules-len(Defaults))
		}
	}
	return rs, nil
}

// parseRule reads one line; ok false: it says nothing.
func parseRule(s string) (r rule, ok bool, err error) {
	s = strings.TrimRight(s, " \t\r\n")
	if s == "" || s[0] == '#' {
		return r, false, nil
	}
	if s[0] == '!' {
		r.keep, s = true, s[1:]
	}
	s, r.folders = strings.CutSuffix(s, "/")
	anchored := strings.Contains(s, "/")
	s = strings.TrimPrefix(s, "/")
	if s == "" {
		return r, false, errors.New("the rule names nothing")
	}
	if !anchored {
		r.elements = []string{"**"}
	}
	r.elements = append(r.elements, strings.Split(s, "/")...)
	wild := 0
	for _, e := range r.elements {
		if e == "**" {
			wild++
		}
		if _, err := path.Match(e, ""); err != nil || e == "" || e == "." || e == ".." {
			return r, false, fmt.Errorf("%q is no pattern: it is a path below the folder, in which *, ? and [a-z] match within one name and ** any folders", clip(s))
		}
	}
	if wild > maxWildcards {
		return r, false, fmt.Errorf("%q has more than %d times **", clip(s), maxWildcards)
	}
	return r, true, nil
}

// ignored reports whether the entry at name, a slash-separated path, is left out. What
// lies in a folder that is left out is not asked for.
func (rs rules) ignored(name string, dir bool) bool {
	elements := strings.Split(name, "/")
	for i := len(rs) - 1; i >= 0; i-- {
		if r := &rs[i]; (dir || !r.folders) && match(r.elements, elements) {
			return !r.keep
		}
	}
	return false
}

func match(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			rest := pattern[1:]
			if len(rest) == 0 {
				return len(name) > 0 // what is inside, not the folder itself
			}
			for i := range name {
				if match(rest, name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}
