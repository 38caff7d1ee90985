// Package python carries the Python files that a node needs inside the binary: the warm
// forkserver's side, so that it is of the binary's own build whatever an interpreter has
// installed. Nothing but embedded files may live here; the Python package troupe is in the
// folder of that name.
package python

import "embed"

//go:embed troupe/_warm/*.py
var files embed.FS

// Warm returns the files of the forkserver by name.
func Warm() (map[string][]byte, error) {
	const dir = "troupe/_warm"
	list, err := files.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, e := range list {
		if out[e.Name()], err = files.ReadFile(dir + "/" + e.Name()); err != nil {
			return nil, err
		}
	}
	return out, nil
}
