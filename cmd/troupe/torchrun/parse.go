package torchrun

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// UsageError is a command line that cannot be understood.
type UsageError string

func (e UsageError) Error() string { return string(e) }

func badUsage(format string, args ...any) error { return UsageError(fmt.Sprintf(format, args...)) }

// Own tells about options that are not torchrun's, by their exact spelling, --name or
// -n; they are passed through unread.
type Own func(name string) (takesValue, known bool)

// Line is a command line, understood.
type Line struct {
	values map[string]string // by dest, checked
	lists  map[string][]string
	from   map[string]string // dest to its source: a spelling, or PET_X

	Own    []string // words of options that are not torchrun's, and of unknown ones
	Rest   []string // from the script on
	Dashes bool     // a -- stood before the script
}

// Parse reads words up to the script. A unique prefix stands for an option, as argparse
// has it, but nothing behind the script is ever read. Defaults come from PET_<DEST>, also
// when that is empty. What is neither torchrun's nor own stands in Line.Own, for whoever
// knows better to complain of.
func Parse(words []string, lookup func(string) (string, bool), own Own) (*Line, error) {
	l := &Line{values: map[string]string{}, lists: map[string][]string{}, from: map[string]string{}}
	for i := range Options {
		o := &Options[i]
		l.values[o.Dest()] = o.Default
		if o.Kind == Flag {
			l.values[o.Dest()] = "false"
		}
		if env := o.Env(); env != "" {
			if v, ok := lookup(env); ok {
				if err := l.set(o, v, env); err != nil {
					return nil, err
				}
			}
		}
	}
	rest := slices.Clone(words)
	for len(rest) > 0 {
		word := rest[0]
		if word == "--" {
			l.Dashes, rest = true, rest[1:]
			break
		}
		if len(word) < 2 || word[0] != '-' {
			break
		}
		if takes, more, ok := ownWord(own, word); ok {
			l.Own = append(l.Own, word[:len(word)-len(more)])
			rest = rest[1:]
			if more != "" {
				if unflagged(more) {
					return nil, badUsage("%s takes no value", word[:2])
				}
				rest = append([]string{"-" + more}, rest...) // -qr3 is -q -r3
			}
			if takes && len(rest) > 0 {
				l.Own, rest = append(l.Own, rest[0]), rest[1:]
			}
			continue
		}
		o, name, attached, err := match(word)
		switch {
		case err != nil:
			return nil, err
		case o == nil && (negative.MatchString(word) || strings.Contains(word, " ")):
			// argparse takes such a word for the script.
		case o == nil:
			l.Own, rest = append(l.Own, word), rest[1:]
			continue
		default:
			if rest, err = l.take(o, name, attached, rest[1:]); err != nil {
				return nil, err
			}
			continue
		}
		break
	}
	l.Rest = rest
	return l, nil
}

var negative = regexp.MustCompile(`^(-\d+|-\d*\.\d+)$`)

// ownWord recognises an option that is not torchrun's. takes says that the next word is
// its value; more is what follows a short flag in the same word.
func ownWord(own Own, word string) (takes bool, more string, ok bool) {
	if own == nil {
		return false, "", false
	}
	if strings.HasPrefix(word, "--") {
		name, _, attached := strings.Cut(word, "=")
		takes, ok = own(name)
		return takes && !attached, "", ok
	}
	takes, ok = own(word[:2])
	switch {
	case !ok || len(word) == 2:
		return takes, "", ok
	case takes:
		return false, "", true // -n4
	}
	return false, word[2:], true
}

// match finds the option that a word names, its spelling and its attached value; nil if
// there is none.
func match(word string) (o *Option, name string, attached *string, err error) {
	if o = byName[word]; o != nil {
		return o, word, nil, nil
	}
	name, value, equals := strings.Cut(word, "=")
	if equals {
		attached = &value
	}
	if o = byName[name]; o != nil && equals {
		return o, name, attached, nil
	}
	if !strings.HasPrefix(word, "--") {
		if o = byName[word[:2]]; o != nil {
			value = word[2:]
			return o, word[:2], &value, nil
		}
		return nil, "", nil, nil
	}
	var found []*Option
	for i := range Options {
		if slices.ContainsFunc(Options[i].Names, func(n string) bool { return strings.HasPrefix(n, name) }) {
			found = append(found, &Options[i])
		}
	}
	switch len(found) {
	case 0:
		return nil, "", nil, nil
	case 1:
		return found[0], found[0].Name(), attached, nil
	}
	list := make([]string, len(found))
	for i, o := range found {
		list[i] = o.Name()
	}
	slices.Sort(list)
	return nil, "", nil, badUsage("%s is ambiguous: %s", name, strings.Join(list, ", "))
}

// take reads an option's value, from the words that follow if it is not attached.
func (l *Line) take(o *Option, name string, attached *string, rest []string) ([]string, error) {
	if o.Kind == Flag {
		if attached != nil {
			if strings.HasPrefix(name, "--") || *attached == "" || unflagged(*attached) {
				return nil, badUsage("%s takes no value", name)
			}
			rest = append([]string{"-" + *attached}, rest...) // -mr3 is -m -r3
		}
		l.values[o.Dest()], l.from[o.Dest()] = "true", name
		return rest, nil
	}
	if attached == nil {
		if len(rest) == 0 || looksLikeOption(rest[0]) {
			return nil, badUsage("%s expects a value", name)
		}
		attached, rest = &rest[0], rest[1:]
	}
	return rest, l.set(o, *attached, name)
}

// unflagged reports whether what follows a short flag in the same word could only be taken
// for a script, which must be a word of its own.
func unflagged(more string) bool {
	word := "-" + more
	return byName[word[:2]] == nil && (negative.MatchString(word) || strings.Contains(word, " "))
}

func looksLikeOption(word string) bool {
	if word == "--" {
		return true
	}
	return len(word) > 1 && word[0] == '-' && !negative.MatchString(word) && !strings.Contains(word, " ")
}

// set checks and keeps a value.
func (l *Line) set(o *Option, value, source string) error {
	switch o.Kind {
	case Flag: // from the environment: any number but 0
		n, err := whole(value)
		if err != nil {
			return badUsage("%s=%q is not 0 or 1", source, value)
		}
		value = strconv.FormatBool(n != 0)
	case Whole:
		n, err := whole(value)
		if err != nil {
			return badUsage("%s: %q is not a whole number", source, value)
		}
		value = strconv.FormatInt(n, 10)
	case Number:
		if _, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
			return badUsage("%s: %q is not a number", source, value)
		}
	case List:
		const comma = "\x00"
		l.lists[o.Dest()] = nil
		for part := range strings.SplitSeq(strings.ReplaceAll(value, ",,", comma), ",") {
			l.lists[o.Dest()] = append(l.lists[o.Dest()], strings.ReplaceAll(part, comma, ","))
		}
	case Text:
		if len(o.Choices) > 0 && !slices.Contains(o.Choices, value) {
			return badUsage("%s: %q is none of %s", source, value, strings.Join(o.Choices, ", "))
		}
	}
	l.values[o.Dest()], l.from[o.Dest()] = value, source
	return nil
}

func whole(s string) (int64, error) { return strconv.ParseInt(strings.TrimSpace(s), 10, 64) }

// Given says whether the command line or the environment set an option.
func (l *Line) Given(dest string) bool { return l.from[dest] != "" }

// Typed says whether the command line set it.
func (l *Line) Typed(dest string) bool { return strings.HasPrefix(l.from[dest], "-") }

func (l *Line) text(dest string) string { return l.values[dest] }
func (l *Line) flag(dest string) bool   { return l.values[dest] == "true" }

func (l *Line) whole(dest string) int64 {
	n, _ := whole(l.values[dest]) // checked by set
	return n
}

// Set puts a value as if the command line had it, for options that a command takes by a
// flag of its own.
func (l *Line) Set(dest, value string) { l.values[dest], l.from[dest] = value, "--"+dest }

// PrintCompletion is the shell that --print-completion names, or nothing.
func (l *Line) PrintCompletion() string { return l.text("print_completion") }
