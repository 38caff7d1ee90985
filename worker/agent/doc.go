// Package agent is the worker's node agent: it registers with the head, keeps the
// lease, makes what runs on this node equal to what the head desires, and carries
// facts back until they are acknowledged. It owns no process: each allocation has a
// shim that outlives the agent, and an agent that starts again finds its shims through
// the state folder (P6).
//
// What may not live here: how ranks are started, contained and killed (worker/shim,
// worker/process), what is desired and why (head), and the content of checkpoints
// (elastic/checkpoint).
//
// Each allocation has one goroutine, which alone talks to its shim; whatever others
// learn (desired state, acknowledgements, a renewed lease, a verdict) they note under
// Agent.mu and wake it.
package agent
