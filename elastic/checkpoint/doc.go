// Package checkpoint holds what Troupe knows about coordinated checkpoints: the
// names and the manifest of a step, the agreement that a step is prepared by every
// rank and may commit (P4), digests and verification, the operations on a directory
// store that agents carry out for the head, retention, and the choice of the step
// to restore.
//
// The life of one step in a directory store:
//
//	<store>/<run>/step-<n>-g<generation>-<life>/
//	    rank-<r>/…  shared/…     written in place by the ranks, synced and hashed by the saver
//	    manifest.json            create-only; a pure function of the prepared reports
//	    committed.json           written after the commit entry is in the log
//	    rolled-back.json         written after a rolled-back entry freed the step
//
// Truth about what is committed is the head's log; committed.json is how a head
// that lost its log finds it again, and nothing with committed.json counts as
// garbage.
//
// Names, manifest, tracker, retention, interval and the choice of the step are pure:
// no clock, no disk, no bus. Only digest.go, tree.go and store.go touch files, and
// they do so through FS alone. What may not live here: sockets, NATS, Raft,
// processes, timers and the Python side of a save.
package checkpoint
