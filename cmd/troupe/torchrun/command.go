package torchrun

import (
	"regexp"
	"strings"
)

// runPath runs a script as --run-path does, in a process of its own.
const runPath = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

// Command is what each rank executes for a script and its arguments. The macro
// ${local_rank} is left in for whoever starts the ranks.
func (s *Settings) Command(python string, rest []string) []string {
	script, args := rest[0], make([]string, 0, len(rest))
	for _, a := range rest {
		args = append(args, macro(a))
	}
	switch {
	case s.RunPath:
		return append([]string{python, "-u", "-c", runPath}, args...)
	case s.NoPython:
		return append([]string{script}, args[1:]...)
	case s.Module:
		return append([]string{python, "-u", "-m"}, args...)
	}
	return append([]string{python, "-u"}, args...)
}

// Entry is the name that the failure summary calls the run by, as torchrun has it: the
// script under Python, else the program.
func (s *Settings) Entry(script string) string {
	if s.RunPath {
		return "run_script_path"
	}
	return script
}

var variable = regexp.MustCompile(`\$(?:\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)

// expand replaces $NAME and ${NAME} as Python's string.Template.safe_substitute does: $$
// is one $, and what is not known stays.
func expand(text string, value func(name string) (string, bool)) string {
	return variable.ReplaceAllStringFunc(text, func(m string) string {
		if m == "$$" {
			return "$"
		}
		if v, ok := value(strings.Trim(m[1:], "{}")); ok {
			return v
		}
		return m
	})
}

// macro writes the macro of a word the one way that shims replace.
func macro(word string) string {
	return expand(word, func(name string) (string, bool) { return "${local_rank}", name == "local_rank" })
}

// LinePrefix is what stands before each teed line of a rank.
func LinePrefix(template, role, hostname string, rank, localRank string) string {
	if template == "" {
		return "[" + role + localRank + "]:"
	}
	return expand(template, func(name string) (string, bool) {
		v, ok := map[string]string{"role_name": role, "local_rank": localRank, "rank": rank, "hostname": hostname}[name]
		return v, ok
	})
}
