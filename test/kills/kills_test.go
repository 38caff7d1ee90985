// Package kills runs a short kill campaign with every full test run; the long one is
// `python test/kills/kills.py --kills 200`. What it counts is described in kills.py.
package kills

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestKills kills ranks, shims, agent and head at random moments, with a fresh seed
// each time; a failure prints the seed (P1, P3, P4, P6).
func TestKills(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	binary := os.Getenv("TROUPE_BIN")
	if binary == "" {
		binary = filepath.Join("..", "..", "bin", "troupe")
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run `make build` first", err)
	}
	python := os.Getenv("TROUPE_PYTHON")
	if python == "" {
		python = "python3"
	}
	out, err := exec.CommandContext(t.Context(), python, "kills.py", "--kills", "24", "--troupe", binary).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
