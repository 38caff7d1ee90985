// Package hostile drives the real binary with jobs, files and moments that are meant
// to break it, and checks from outside what must hold all the same: the right end with
// the right exit code, no process, no hold and no cgroup left. It holds tests only;
// the misbehaving programs are in test/programs, random kills in test/kills.
package hostile
