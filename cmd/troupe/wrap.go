package main

import (
	"errors"
	"strings"

	shellwords "github.com/mattn/go-shellwords"

	troupe "github.com/troupe-runtime/troupe/sdk"
)

const wrapUsage = "`words`: stand in front of each rank's command, split as a shell does: 'apptainer exec img.sif'"

// wrapWords splits the value of --wrap by a shell's rules of quotes and backslashes.
// Nothing is expanded and nothing is run.
func wrapWords(text string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	p := shellwords.NewParser()
	words, err := p.Parse(text)
	if err == nil && p.Position >= 0 {
		err = errors.New("a quote would be needed around " + text[p.Position:])
	}
	if err != nil {
		return nil, usage("--wrap %q cannot be split into words: %v", text, err)
	}
	return words, nil
}

// checkWrapped checks the first program that starts. What a wrapper finds behind it, in
// an image or on another machine, is its own to say; the script is looked for all the
// same when nothing wraps it.
func checkWrapped(dir string, wrap, command []string) error {
	if len(wrap) > 0 {
		return checkCommand(dir, wrap)
	}
	return checkCommand(dir, command)
}

// nodesAreHere says whether the cluster is one that `up` runs on this machine, so that
// what is found here is found by its ranks.
func (a *app) nodesAreHere() bool {
	cl, err := a.api()
	if err != nil {
		return false
	}
	cfg, err := troupe.ReadConfig()
	if err != nil {
		return false
	}
	for _, x := range cfg.Contexts {
		u, err := troupe.ParseAddress(x.Address)
		if err != nil || x.State == "" || !strings.HasSuffix(cl.Address(), "//"+u.Host) {
			continue
		}
		if _, alive, err := readUp(x.State); err == nil && alive {
			return true
		}
	}
	return false
}
