package pack

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is what an entry is.
type kind byte

const (
	folder kind = iota
	file
	link
)

// names holds what an archive has named so far, on either side of it.
type names struct {
	bytes  int               // of all names
	kinds  map[string]kind   // of every entry
	folded map[string]string // case-folded name → the name that took it
}

func newNames() *names {
	return &names{kinds: map[string]kind{}, folded: map[string]string{}}
}

// add takes an entry's name, or says why it may not be there. Its folder must have been
// added before: so nothing is ever created through a link or a file.
func (n *names) add(name string, k kind) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(n.kinds) >= MaxEntries {
		return over("more than %d files, folders and links", MaxEntries)
	}
	if n.bytes += len(name); n.bytes > maxNames {
		return over("the names together have more than %s", sizeText(maxNames))
	}
	if dir := path.Dir(name); dir != "." {
		if at, ok := n.kinds[dir]; !ok || at != folder {
			return refuse(name, "lies in %q, which is no folder of the package", clip(dir))
		}
	}
	if _, ok := n.kinds[name]; ok {
		return refuse(name, "is there twice")
	}
	folded := fold(name)
	if other, ok := n.folded[folded]; ok {
		return refuse(name, "and %q differ only in case, which some file systems take for one", clip(other))
	}
	n.kinds[name], n.folded[folded] = k, name
	return nil
}

// checkName accepts a relative path in its shortest form.
func checkName(name string) error {
	switch {
	case name == "":
		return refuse(name, "is no name")
	case len(name) > maxName:
		return refuse(name, "is longer than %d bytes", maxName)
	case strings.HasPrefix(name, "/"):
		return refuse(name, "is an absolute path")
	case !utf8.ValidString(name):
		return refuse(name, "is not UTF-8")
	case strings.ContainsRune(name, 0):
		return refuse(name, "holds a NUL byte")
	}
	for e := range strings.SplitSeq(name, "/") {
		switch {
		case e == "..":
			return refuse(name, "leads out of the folder")
		case e == "" || e == ".":
			return refuse(name, "is not written in its shortest form")
		case len(e) > maxElement:
			return refuse(name, "has a part longer than %d bytes", maxElement)
		}
	}
	return nil
}

// checkLink accepts a link whose target stays in the tree, whatever other links it passes:
// it may go up first, along folders that are real, and after that only down.
func checkLink(name, target string) error {
	switch {
	case target == "":
		return refuse(name, "is a link to nothing")
	case len(target) > maxTarget:
		return refuse(name, "is a link to a path longer than %d bytes", maxTarget)
	case strings.HasPrefix(target, "/"):
		return refuse(name, "is a link to the absolute path %q", clip(target))
	case !utf8.ValidString(target) || strings.ContainsRune(target, 0):
		return refuse(name, "is a link to something that is no path")
	}
	depth, down := strings.Count(name, "/"), false
	for e := range strings.SplitSeq(target, "/") {
		switch {
		case e == "" || e == ".":
		case e != "..":
			down = true
		case down:
			return refuse(name, "is a link to %q, which goes up again after it went down", clip(target))
		default:
			if depth--; depth < 0 {
				return refuse(name, "is a link to %q, outside of the folder", clip(target))
			}
		}
	}
	return nil
}

// fold maps names that differ only in case to one.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, s)
}
