// Package warm is the node's side of warm starts: which command a pre-imported Python
// interpreter can stand in for, when one forkserver can serve two starts, what was learned
// of a script, and the protocol with the forkserver. It starts no process and knows no
// attempt: worker/shim starts the forkserver and hands ranks over; the Python side is
// sdk/python/troupe/_warm.
package warm
