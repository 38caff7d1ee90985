// Package hosts tests launches over several hosts: each host is a network namespace with
// a host name of its own, joined to the others by a bridge, and runs the real binary. What
// needs no network of its own (the join protocol, certificates, which hosts make up a
// group) is tested where it lives.
package hosts
