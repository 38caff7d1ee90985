package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTablesAreUpToDate: what each table wants to replace still stands where it says, once.
// Else the bug is not planted, and nobody knows before the long run.
func TestTablesAreUpToDate(t *testing.T) {
	tables, err := filepath.Glob("../*/mutants.json")
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, table := range tables {
		b, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		var list []mutant
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		for _, m := range list {
			src, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(m.File)))
			if err != nil {
				t.Errorf("%s: %v", m.Name, err)
				continue
			}
			if n := strings.Count(string(src), m.Old); n != 1 || m.Old == m.New {
				t.Errorf("%s: %s holds the text to replace %d times", m.Name, m.File, n)
			}
		}
	}
}
