// Package process contains the processes of one allocation: which cgroups hold
// them, how they are ended, and how what is left is found. It knows /proc, cgroups
// and signals, who a peer on a socket is and whether a port is taken, and nothing else:
// attempts, generations and leases live in
// worker/shim, desired state in worker/agent.
//
// Three nets hold a process tree, each enough on its own for the programs that it
// sees: cgroup.kill on a cgroup2 group (also processes that cleaned their
// environment and left their session), the tree below the shim, which is a
// subreaper, and an environment mark, the cookie, which survives the shim's death
// (P6). What none of them can end is named, never forgotten (P2). Without any cgroup
// one case is out of reach: a process that dropped the mark, left its session, and
// whose shim was killed as well.
package process
