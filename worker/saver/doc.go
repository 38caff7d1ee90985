// Package saver is the process beside a shim that does for it what needs hashing,
// much memory, or a file system that may hang: it makes the folders of a step, makes
// files durable, hashes them, writes what a rank has staged for an asynchronous save,
// and verifies a share of a step before it is restored.
// It is the hidden command `troupe saver`, speaks JSON lines with its shim
// (shim.SaverRequest), survives ranks and agents, and ends when its shim does. What
// is committed is decided elsewhere; nothing here talks to the network.
package saver
