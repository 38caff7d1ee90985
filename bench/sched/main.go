// Command sched measures the scheduler on one core, with shipped defaults: how much of the
// devices the openb traces get, and how fast a full cluster is decided on.
//
//	sched openb FOLDER WORKLOAD SEED
//	sched full FOLDER NODES WAITING EVENTS SEED
//
// It prints one JSON object.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
	if len(args) == 6 && args[0] == "full" {
		n := make([]int, 4)
		for i := range n {
			v, err := strconv.Atoi(args[2+i])
			if err != nil {
				return nil, err
			}
			n[i] = v
		}
		return fullCluster(filepath.Join(args[1], "kalos_gang_jobs.csv.gz"), n[0], n[1], n[2], uint64(n[3]))
	}
	return nil, fmt.Errorf("usage: sched openb FOLDER WORKLOAD SEED, or sched full FOLDER NODES WAITING EVENTS SEED")
}
