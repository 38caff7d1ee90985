package api

import "maps"

// Shape is one kind of bundle that is asked for, and how often beside the others.
type Shape struct {
	Bundle Bundle
	Where  []LabelRule
	Pool   string
	Weight int64
}

// mostShapes bounds what one request adds to a mix of shapes.
const mostShapes = 8

// maxNodeGPUs bounds the devices that a shape may have together.
const maxNodeGPUs = 4096

// Shapes is what a request asks of one node at a time, each kind once.
func (s *GroupSpec) Shapes() []Shape {
	var out []Shape
	for i := range s.Bundles {
		b := &s.Bundles[i]
		if i > 0 && s.Bundles[i-1].Equal(b) {
			continue
		}
		if len(out) == mostShapes {
			break
		}
		shape := Shape{Bundle: *b, Where: s.Where, Pool: s.Pool, Weight: 1}
		if n := s.PerNode; n > 1 && n <= maxNodeGPUs && b.GPUs <= maxNodeGPUs && b.Share == 0 {
			shape.Bundle.GPUs *= n
		}
		out = append(out, shape)
	}
	return out
}

// Equal reports whether two bundles ask for the same.
func (b *Bundle) Equal(other *Bundle) bool {
	return b.Resources == other.Resources && maps.Equal(b.Labels, other.Labels)
}
