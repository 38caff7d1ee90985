package api

// Signals are those that ranks can be sent by name. What ends a process without asking
// it is not among them: that is what stop is for.
var Signals = map[string]int64{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15, "SIGCONT": 18, "SIGWINCH": 28,
}

// SignalRequest asks for a signal to the main process of each rank.
type SignalRequest struct {
	Signal string  `json:"signal" doc:"SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT or SIGWINCH."`
	Ranks  []int64 `json:"ranks,omitempty" doc:"Only these; absent: all."`
}

// SignalResult says whom a signal was sent to.
type SignalResult struct {
	Job     string  `json:"job"`
	Attempt int64   `json:"attempt"`
	Signal  string  `json:"signal"`
	Ranks   []int64 `json:"ranks"`
}
