// Package consensus is the replicated log of the head: one Raft node which keeps
// commands in order and on disk, and hands each of them once to a state machine.
//
// Here live the log store with its checksums, the snapshot store, the folder with
// its lock and format number, proposing, and the loop that tells the leader's
// components when they may work. What a command means lives in head/state, what a
// leader does in head/control; neither may be imported here.
//
// With one voter nothing listens on a port: the transport is a queue in memory. More
// heads bring their own transport through Config.Transport; everything else is the
// same code, and three nodes in memory run it in tests.
//
// What the package promises: a proposal that was acknowledged is on disk and applied
// (P5); a damaged entry or snapshot is never served (every entry carries a crc32c,
// checked when it is read and again before it is applied); a replica that cannot
// follow the log stops and says why on Fatal, and never panics. What it does not
// promise yet: damage to the very last batch of a log looks like a torn write,
// and the batch is dropped; a durable floor beside the log will close that.
package consensus
