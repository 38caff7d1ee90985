// Package cluster is a whole Troupe cluster in one testing/synctest bubble: heads with
// their logs in memory, the real agents, the real supervisor and scheduler, joined by
// the in-memory bus. Only processes are played: a launcher that speaks the shim's
// protocol, and ranks that follow a script. Faults are injected by name or by seed,
// and three checkers look on: one after every command of the log, one that knows what
// truly runs on each host, and one at the end. Nothing of the product lives here, and
// nothing here waits on the machine's clock.
package cluster
