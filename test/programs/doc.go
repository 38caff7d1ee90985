// Package programs documents the tiny programs in its subfolders, which tests start
// as ranks. Each misbehaves in one way; none is part of a build of Troupe.
package programs
