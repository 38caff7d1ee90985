// Package shim owns the processes of one allocation on one node. A shim is one
// small process that survives the agent: it starts ranks, waits for them itself,
// sweeps what they leave, enforces leases, and answers the rank helper. It imports
// the standard library, x/sys and its own protocol, no msgpack, no NATS server, no
// Raft, because it must stay under 8 MB. How a process tree is contained lives in
// worker/process; what is desired lives in worker/agent.
package shim
