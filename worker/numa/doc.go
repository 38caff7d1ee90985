// Package numa says which CPUs are near a device, from what the kernel tells in sysfs. The
// words and their meanings are those of torchrun's --numa-binding. It reads files and
// nothing else: who is bound, and when, is the agent's and the shim's business.
package numa
