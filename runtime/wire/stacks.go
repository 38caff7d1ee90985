package wire

// AskStacks asks where the ranks of an allocation stand now (n.<node>.stacks).
type AskStacks struct {
	Alloc      string `json:"alloc"`
	Generation uint64 `json:"gen"`
}

// RankStacks answers AskStacks.
type RankStacks struct {
	Ranks []RankStack `json:"ranks,omitempty"`
	Error string      `json:"error,omitempty"`
}

// RankStack is where one rank stands. Stack is at most 4 KiB.
type RankStack struct {
	Rank  int64  `json:"rank"`
	Step  int64  `json:"step"`
	State string `json:"state,omitempty"` // of the process, as "S (sleeping)"
	Stack string `json:"stack,omitempty"`
}

// NodeStacks is where a node answers for the stacks of its ranks.
func NodeStacks(node string) string { return "n." + node + ".stacks" }
