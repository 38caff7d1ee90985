package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Script is what each rank of a job does. It travels as the job's command, so that a
// rank knows nothing but what a real one would.
type Script struct {
	Steps    int64         // then it ends with Exit
	StepTime time.Duration // of one step; all ranks of a generation go together
	Start    time.Duration // from the order to the running process
	Exit     int64
	// Dies lists deaths that belong to the program: at a step of an attempt.
	Dies []Death
	// NoStart makes attempts below it fail to start.
	NoStart int64
	// Silent ranks of a broken group hang in their collective instead of failing.
	Silent bool
	// Stubborn ranks ignore SIGTERM.
	Stubborn bool
	// Deaf ranks never call should_checkpoint; they save every N steps all the same.
	Deaf bool
}

// Death is how a rank ends itself.
type Death struct {
	Attempt, Rank, Step int64 // Attempt -1: every one
	Code                int64
}

// Command encodes the script as argv.
func (s Script) Command() []string {
	argv := []string{
		"sim", "steps=" + strconv.FormatInt(s.Steps, 10), "step=" + s.StepTime.String(), "start=" + s.Start.String(),
		"exit=" + strconv.FormatInt(s.Exit, 10), "nostart=" + strconv.FormatInt(s.NoStart, 10),
	}
	if s.Silent {
		argv = append(argv, "silent")
	}
	if s.Stubborn {
		argv = append(argv, "stubborn")
	}
	if s.Deaf {
		argv = append(argv, "deaf")
	}
	for _, d := range s.Dies {
		argv = append(argv, fmt.Sprintf("die=%d:%d:%d:%d", d.Attempt, d.Rank, d.Step, d.Code))
	}
	return argv
}

// parseScript reads what Command wrote; anything else cannot be executed.
func parseScript(argv []string) (Script, error) {
	var s Script
	if len(argv) == 0 || argv[0] != "sim" {
		return s, fmt.Errorf("exec %v: no such file or directory", argv)
	}
	for _, a := range argv[1:] {
		k, v, _ := strings.Cut(a, "=")
		var err error
		switch k {
		case "steps":
			s.Steps, err = strconv.ParseInt(v, 10, 64)
		case "exit":
			s.Exit, err = strconv.ParseInt(v, 10, 64)
		case "nostart":
			s.NoStart, err = strconv.ParseInt(v, 10, 64)
		case "step":
			s.StepTime, err = time.ParseDuration(v)
		case "start":
			s.Start, err = time.ParseDuration(v)
		case "silent":
			s.Silent = true
		case "deaf":
			s.Deaf = true
		case "stubborn":
			s.Stubborn = true
		case "die":
			var d Death
			_, err = fmt.Sscanf(v, "%d:%d:%d:%d", &d.Attempt, &d.Rank, &d.Step, &d.Code)
			s.Dies = append(s.Dies, d)
		default:
			err = fmt.Errorf("unknown word")
		}
		if err != nil {
			return s, fmt.Errorf("exec sim %q: %w", a, err)
		}
	}
	return s, nil
}

// death is the exit code with which a rank ends before a step, if it does.
func (s *Script) death(attempt, rank, step int64) (int64, bool) {
	for _, d := range s.Dies {
		if (d.Attempt == attempt || d.Attempt < 0) && d.Rank == rank && d.Step == step {
			return d.Code, true
		}
	}
	return 0, false
}
