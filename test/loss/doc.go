// Package loss drives the real binary on machines that are network namespaces of this
// one, and takes agents, whole nodes and links away: what is lost, what is held, and what
// goes on. It holds tests only; the same figures in virtual time, and faults by seed, are
// in test/cluster.
package loss
