// Command mutate proves that tests can fail: it plants known bugs, one at a time, and
// demands that the named tests catch each. A bug is a replacement of text in one file;
// it is planted through go's overlay, so the tree itself is never changed. Tables of
// bugs are mutants.json files beside the tests that have to catch them.
//
//	go run ./test/mutate test/cluster/mutants.json [name part]
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutant is one planted bug.
type mutant struct {
	Name string `json:"name"`
	File string `json:"file"` // from the root of the module
	Old  string `json:"old"`  // stands there once
	New  string `json:"new"`
	// Package and Run are the tests that must fail.
	Package string `json:"package"`
	Run     string `json:"run"`
}

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: mutate MUTANTS.json [NAME PART]")
		os.Exit(64)
	}
	part := ""
	if len(os.Args) == 3 {
		part = os.Args[2]
	}
	if err := run(os.Args[1], part); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(table, part string) error {
	b, err := os.ReadFile(table)
	if err != nil {
		return err
	}
	var list []mutant
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	survived, planted := 0, 0
	for _, m := range list {
		if !strings.Contains(m.Name, part) {
			continue
		}
		planted++
		start := time.Now()
		first, err := m.plant(dir)
		took := time.Since(start).Round(100 * time.Millisecond)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", m.Name, err)
		case first == "":
			survived++
			fmt.Printf("SURVIVED  %-44s %s, in %s\n", m.Name, m.Run, took)
		default:
			fmt.Printf("caught    %-44s %s, in %s\n", m.Name, first, took)
		}
	}
	if survived > 0 {
		return fmt.Errorf("%d of %d planted bugs were not caught", survived, planted)
	}
	fmt.Printf("all %d planted bugs were caught\n", planted)
	return nil
}

// plant runs the tests over a changed copy and returns the first test that failed, ""
// when none did.
func (m *mutant) plant(dir string) (string, error) {
	file, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	src, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.Old); n != 1 {
		return "", fmt.Errorf("%s holds the text to replace %d times; bring the table up to date", m.File, n)
	}
	changed := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "test", "-count=1", "-failfast", "-timeout", "10m", "-overlay", path, "-run", m.Run, m.Package).CombinedOutput()
	text := string(out)
	switch {
	case err == nil:
		return "", nil
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return "", fmt.Errorf("the changed code does not build:\n%s", text)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name, nil
		}
	}
	return "the test binary", nil // a panic, or no end
}
