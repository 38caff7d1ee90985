package torchrun

import (
	"fmt"
	"sort"
	"strings"
)

// Explained is how one option was taken.
type Explained struct {
	Flag      string   `json:"flag"`
	Spellings []string `json:"spellings"`
	Dest      string   `json:"dest"`
	Kind      Kind     `json:"kind"`
	Choices   []string `json:"choices,omitempty"`
	Env       string   `json:"environment,omitempty"`
	Default   string   `json:"default"`
	Value     string   `json:"value"`
	List      []string `json:"list,omitempty"`
	From      string   `json:"from"` // default, a spelling, or PET_X
	How       How      `json:"taken"`
	Text      string   `json:"how"`
}

// Explain says of every option how it was taken; run is for `troupe run`, else launch.
func (l *Line) Explain(run bool) []Explained {
	out := make([]Explained, 0, len(Options))
	for i := range Options {
		o := &Options[i]
		e := Explained{
			Flag: o.Name(), Spellings: o.Names, Dest: o.Dest(), Kind: o.Kind, Choices: o.Choices, Env: o.Env(),
			Default: o.Default, Value: l.values[o.Dest()], List: l.lists[o.Dest()], From: "default",
		}
		if o.Kind == Flag {
			e.Default = "false"
		}
		if f := l.from[o.Dest()]; f != "" {
			e.From = f
		}
		t := o.taken(run)
		e.How, e.Text = t.How, t.Text
		out = append(out, e)
	}
	return out
}

func (o *Option) taken(run bool) Taken {
	if run {
		return o.Run
	}
	return o.Launch
}

// Notes is a line for every option that was set and has no meaning here.
func (l *Line) Notes(run bool) []string {
	var out []string
	for i := range Options {
		o := &Options[i]
		if t := o.taken(run); t.How == NoMeaning && l.Given(o.Dest()) {
			out = append(out, fmt.Sprintf("%s has no effect: %s", l.source(o), t.Text))
		}
	}
	return out
}

func (l *Line) source(o *Option) string {
	if f := l.from[o.Dest()]; strings.HasPrefix(f, "PET_") {
		return f
	}
	return o.Name()
}

// Usage is the list of options for a help text.
func Usage() string {
	var b strings.Builder
	for i := range Options {
		o := &Options[i]
		left := o.Name()
		if len(o.Names[0]) == 2 {
			left = o.Names[0] + ", " + left
		}
		if o.Kind != Flag {
			left += " " + strings.ToUpper(o.Dest()[strings.LastIndexByte(o.Dest(), '_')+1:])
		}
		_, _ = fmt.Fprintf(&b, "  %-38s %s\n", left, o.Help)
	}
	return b.String()
}

// Spellings are all spellings of all options.
func Spellings() []string {
	var out []string
	for n := range byName {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// Completion is a script that completes the options of the named commands in a shell:
// bash, zsh or tcsh.
func Completion(shell string, commands ...string) string {
	var flags []string
	for i := range Options {
		flags = append(flags, Options[i].Names...)
	}
	sort.Strings(flags)
	switch shell {
	case "zsh":
		var b strings.Builder
		_, _ = fmt.Fprintf(&b, "#compdef %s\n_arguments -S \\\n", strings.Join(commands, " "))
		for i := range Options {
			o := &Options[i]
			help := strings.NewReplacer("'", "", "[", "(", "]", ")", ":", "\\:").Replace(o.Help)
			value := ""
			switch {
			case len(o.Choices) > 0:
				value = ":value:(" + strings.Join(o.Choices, " ") + ")"
			case o.Kind != Flag:
				value = ":value:"
			}
			for _, n := range o.Names {
				_, _ = fmt.Fprintf(&b, "  '%s[%s]%s' \\\n", n, help, value)
			}
		}
		b.WriteString("  '1:script:_files' '*::arguments:_files'\n")
		return b.String()
	case "tcsh":
		var b strings.Builder
		for _, c := range commands {
			_, _ = fmt.Fprintf(&b, "complete %s 'c/--/(%s)/' 'p/*/f/'\n", c, trimDashes(flags))
		}
		return b.String()
	}
	var choices strings.Builder
	for i := range Options {
		if o := &Options[i]; len(o.Choices) > 0 {
			_, _ = fmt.Fprintf(&choices, "    %s) COMPREPLY=($(compgen -W %q -- \"$word\")); return ;;\n", strings.Join(o.Names, "|"), strings.Join(o.Choices, " "))
		}
	}
	return fmt.Sprintf(`_troupe_torchrun() {
  local word=${COMP_WORDS[COMP_CWORD]}
  case ${COMP_WORDS[COMP_CWORD-1]} in
%s  esac
  case $word in
    -*) COMPREPLY=($(compgen -W %q -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}
complete -o filenames -F _troupe_torchrun %s
`, choices.String(), strings.Join(flags, " "), strings.Join(commands, " "))
}

func trimDashes(flags []string) string {
	var out []string
	for _, f := range flags {
		if t, ok := strings.CutPrefix(f, "--"); ok {
			out = append(out, t)
		}
	}
	return strings.Join(out, " ")
}
