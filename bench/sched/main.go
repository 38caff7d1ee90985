// Command sched measures the scheduler on one core, with shipped defaults: how much of the
// devices the openb traces get, and how fast a full cluster is decided on.
//
//	sched openb FOLDER WORKLOAD SEED
//
// It prints one JSON object.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

func main() {
	out, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) (any, error) {
	switch {
	case len(args) == 4 && args[0] == "openb":
		seed, err := strconv.ParseUint(args[3], 10, 64)
		if err != nil {
			return nil, err
		}
		got, err := openb(args[1], args[2], seed)
		return map[string]float64{"allocated": got}, err
	}
	return nil, fmt.Errorf("usage: sched openb FOLDER WORKLOAD SEED")
}
