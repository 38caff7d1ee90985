// Command troupe-shim owns the processes of one allocation on one node. It is a
// binary of its own because it must stay small: it may import worker/shim and what
// that needs: the standard library, x/sys, its own protocol and nats.go, never a NATS
// server, Raft or NVML. All of it lives in worker/shim.
package main

import (
	"os"

	"github.com/troupe-runtime/troupe/worker/shim"
)

func main() { os.Exit(shim.Main(os.Args[1:])) }
