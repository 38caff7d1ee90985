// Package torchrun knows torchrun's command line: its options, how they are spelled and
// abbreviated, where their defaults come from, and what becomes of each under
// `troupe launch` and `troupe run`. It reads words and environment and does nothing with
// them: no process, no file, no network belongs here.
package torchrun
