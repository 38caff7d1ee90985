// Package simulate runs a trace of jobs on a cluster that does not exist: in virtual
// time, over the real state machine (head/state), scheduler (head/schedule) and supervisor
// (elastic/supervise), with nodes and devices that fail by given distributions. It says
// how long jobs waited, how full the cluster was and what failures cost. The same trace,
// cluster and seed give the same answer. It starts no process, opens no connection and
// reads no clock; what a real head does around the deciders (leases, messages, agents) is
// not simulated here but in test/cluster.
package simulate
