// Command troupe is the head, the worker agent and the command line. One file holds
// one group of commands; what they ask for is done by head, worker and sdk, and
// nothing is decided here.
package main

import (
	"os"

	"github.com/troupe-runtime/troupe/worker/saver"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// version is set by the linker from VERSION.
var version = "0.1.0-dev"

func main() {
	// The hidden modes come first: they start once for every allocation and rank, and
	// must not pay for building the command tree.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(shim.Main(os.Args[2:]))
		case "saver":
			os.Exit(saver.Main())
		}
	}
	os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
