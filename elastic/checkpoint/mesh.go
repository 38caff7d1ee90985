package checkpoint

import (
	"fmt"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// MaxMesh bounds the dimensions of a device mesh.
const MaxMesh = 16

// checkMesh checks a device mesh: its dimensions have names, each its own, and hold the
// whole world together. No dimension at all means that none was given.
func checkMesh(mesh []wire.MeshDim, world int64) error {
	if len(mesh) > MaxMesh {
		return fmt.Errorf("a device mesh of %d dimensions, at most %d are allowed", len(mesh), MaxMesh)
	}
	seen, ranks := map[string]bool{}, int64(1)
	for _, d := range mesh {
		switch {
		case ValidRun(d.Name) != nil:
			return fmt.Errorf("dimension %q of the device mesh: its name is 1 to %d letters, digits, '.', '_' and '-', beginning with a letter or digit", trim(d.Name), MaxRunName)
		case seen[d.Name]:
			return fmt.Errorf("dimension %s is twice in the device mesh", d.Name)
		case d.Size < 1 || d.Size > MaxWorld || ranks > MaxWorld/d.Size:
			return fmt.Errorf("dimension %s of the device mesh has the size %d", d.Name, d.Size)
		}
		seen[d.Name] = true
		ranks *= d.Size
	}
	if len(mesh) > 0 && ranks != world {
		return fmt.Errorf("the device mesh %s holds %d ranks, the world has %d", meshText(mesh), ranks, world)
	}
	return nil
}

// meshText is a mesh for people, as dp=2 tp=4.
func meshText(mesh []wire.MeshDim) string {
	if len(mesh) == 0 {
		return "none"
	}
	parts := make([]string, 0, MaxMesh)
	for _, d := range mesh[:min(len(mesh), MaxMesh)] {
		parts = append(parts, fmt.Sprintf("%s=%d", trim(d.Name), d.Size))
	}
	return strings.Join(parts, " ")
}
