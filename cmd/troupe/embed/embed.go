// Package embed carries the shim inside the main binary. `make build` puts the
// freshly built troupe-shim beside this file before it builds troupe; a plain
// `go build` or `go install` finds only the committed placeholder, and the binary
// then starts itself as the shim. Nothing but embedded files may live here.
package embed

import "embed"

// shimFile is where make puts the shim; git ignores it.
const shimFile = "troupe-shim"

// The pattern names both files by their first letter because a pattern without a
// match is a build error, and the shim is not there in a plain build.
//
//go:embed [pt]*
var files embed.FS

// Shim returns the shim's executable and true, or false when this binary was built
// without one.
func Shim() ([]byte, bool) {
	b, err := files.ReadFile(shimFile)
	if err != nil || len(b) == 0 {
		return nil, false
	}
	return b, true
}
