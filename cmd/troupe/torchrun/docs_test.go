package torchrun

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table into the page")

const page = "../../../docs/reference/torchrun.md"

// The page for users of torchrun says of every option what the table says.
func TestPageHasEveryOption(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| option | under `launch` | under `run` |\n|---|---|---|\n")
	for i := range Options {
		o := &Options[i]
		name := "`" + o.Name() + "`"
		if len(o.Names[0]) == 2 {
			name = "`" + o.Names[0] + "`, " + name
		}
		cell := func(x Taken) string {
			return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(fmt.Sprintf("%s: %s", x.How, x.Text))
		}
		run := cell(o.Run)
		if o.Run == o.Launch {
			run = "the same"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, cell(o.Launch), run)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- options -->\n", "<!-- end -->"
	before, rest, ok1 := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has lost its marks", page)
	}
	if old == b.String() {
		return
	}
	if !*update {
		t.Fatalf("%s does not say what the table says; if the table is right: go test ./cmd/troupe/torchrun -run Page -update", page)
	}
	if err := os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
