package warm

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Command is a command line that runs a Python script or module.
type Command struct {
	Program string   // the interpreter, as given
	Flags   []string // its own, as given: -u, -W error
	Script  string   // as given; "" for a module
	Module  string
	Args    []string // what follows
	Safe    bool     // -P: the script's folder is not on sys.path
}

// python reports whether a program is called python, python3 or python3.12.
func python(name string) bool {
	version, ok := strings.CutPrefix(name, "python")
	if !ok || version == "" {
		return ok
	}
	major, minor, dotted := strings.Cut(version, ".")
	return digits(major) && (!dotted || digits(minor))
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// plainFlags change nothing that a forkserver started with them does not share.
const plainFlags = "uBObdqs"

// Parse takes a command line apart. ok is false when no forkserver can stand in for it; why
// says so for a Python command of which that could have been expected, and is empty for
// every other program.
func Parse(argv []string) (c Command, why string, ok bool) {
	if len(argv) == 0 || !python(filepath.Base(argv[0])) {
		return c, "", false
	}
	c.Program = argv[0]
	for i := 1; i < len(argv); i++ {
		w := argv[i]
		if w == "" || w[0] != '-' {
			c.Script, c.Args = w, argv[i+1:]
			return c, "", w != ""
		}
		if w == "-" || strings.HasPrefix(w, "--") {
			return c, "", false // a script on standard input, --version
		}
		used, why, end := c.flags(argv, i)
		if end || why != "" {
			return c, why, why == "" && c.Module != ""
		}
		c.Flags = append(c.Flags, argv[i:i+used]...)
		i += used - 1
	}
	return c, "", false
}

// flags reads one word of flags and says how many words it takes; end: nothing after them
// is the interpreter's.
func (c *Command) flags(argv []string, i int) (used int, why string, end bool) {
	word := argv[i]
	for at := 1; at < len(word); at++ {
		rest := word[at+1:]
		switch f := word[at]; {
		case strings.IndexByte(plainFlags, f) >= 0:
		case f == 'P':
			c.Safe = true
		case f == 'c':
			return 0, "", true
		case f == 'm':
			args := argv[i+1:]
			if rest == "" {
				if len(args) == 0 {
					return 0, "", true
				}
				rest, args = args[0], args[1:]
			}
			if at > 1 {
				c.Flags = append(c.Flags, word[:at])
			}
			c.Module, c.Args = rest, args
			return 0, "", true
		case f == 'W':
			if rest == "" {
				if i+1 >= len(argv) {
					return 0, "", true
				}
				return 2, "", false
			}
			return 1, "", false
		default:
			return 0, fmt.Sprintf("the interpreter's option -%c needs an interpreter of its own", f), true
		}
	}
	return 1, "", false
}

// Head is the command up to its script, which one forkserver is started with.
func (c *Command) Head() []string {
	words := append([]string{c.Program}, c.Flags...)
	if c.Script == "" {
		return append(words, "-m", c.Module)
	}
	return append(words, c.Script)
}

// Name tells one script from another: its path, or its module.
func (c *Command) Name(dir string) string {
	if c.Script == "" {
		return "-m " + c.Module
	}
	if filepath.IsAbs(c.Script) {
		return filepath.Clean(c.Script)
	}
	return filepath.Join(dir, c.Script)
}
