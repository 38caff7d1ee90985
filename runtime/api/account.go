package api

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Goodput says where the time of a job went, from its submission to its end or to now.
// The parts add up to Wall; Ratio is the useful share, 0 to 1.
type Goodput struct {
	Job   string        `json:"job"`
	Wall  unit.Duration `json:"wall"`
	Ratio float64       `json:"ratio"`

	Useful        unit.Duration `json:"useful"`        // steps whose work is not lost
	Waiting       unit.Duration `json:"waiting"`       // not all of its bundles were held
	Starting      unit.Duration `json:"starting"`      // from placed to the first step of the first attempt
	Checkpointing unit.Duration `json:"checkpointing"` // ranks stood still while they saved
	Stalled       unit.Duration `json:"stalled"`       // no step for longer than the pace allows
	Restarting    unit.Duration `json:"restarting"`    // from the end of an attempt to the first step of the next
	Lost          unit.Duration `json:"lost"`          // steps that were done and must be done again

	Restarts int64     `json:"restarts"`
	Saves    int64     `json:"saves"` // steps in which ranks of the kept attempts saved
	AsOf     time.Time `json:"asOf"`
}

// History is one attempt of a job with what it cost.
type History struct {
	Attempt    int64     `json:"attempt"`
	Generation uint64    `json:"generation"`
	Start      time.Time `json:"start"`
	Running    time.Time `json:"running,omitzero"`
	FirstStep  time.Time `json:"firstStep,omitzero"`
	End        time.Time `json:"end,omitzero"`
	Ranks      int64     `json:"ranks"`
	Nodes      []string  `json:"nodes,omitempty"`
	// From is the step it went on from, Newest the last one it made, Kept the last one
	// that it committed.
	From   *int64   `json:"fromStep,omitempty"`
	Newest *int64   `json:"newestStep,omitempty"`
	Kept   *int64   `json:"committedStep,omitempty"`
	Cause  Cause    `json:"cause,omitempty"`
	Root   *Failure `json:"failure,omitempty"`
	// LostWork is the time of steps that have to be done again, RecoveryTime the time from
	// the end of the attempt before to its own first step.
	LostWork     unit.Duration  `json:"lostWork"`
	Useful       unit.Duration  `json:"useful"`
	RecoveryTime *unit.Duration `json:"recoveryTime,omitempty"`
}

// Kinds of failure beside the causes that are charged.
const (
	// KindConsequence: a rank ended because another one had.
	KindConsequence = "consequence"
	// KindRestart: nobody's failure; a damaged checkpoint, a taken port.
	KindRestart = "not charged"
)

// FailureRow is one failure of a job. The root cause of an attempt comes before its
// consequences.
type FailureRow struct {
	Time      time.Time `json:"time"`
	Attempt   int64     `json:"attempt"`
	Rank      int64     `json:"rank"` // -1: not of one rank
	Node      string    `json:"node,omitempty"`
	Kind      string    `json:"kind"` // user, infrastructure, hang, consequence, not charged
	Root      bool      `json:"root"`
	ExitCode  int64     `json:"exitCode"`
	Signal    string    `json:"signal,omitempty"`
	Message   string    `json:"message"`
	Traceback string    `json:"traceback,omitempty"`
}

// Stacks is where the ranks of a job stand now, equal ones together, the largest group
// first. Missing names the ranks that could not be asked, with the reason.
type Stacks struct {
	Job        string       `json:"job"`
	Attempt    int64        `json:"attempt"`
	Generation uint64       `json:"generation"`
	Groups     []StackGroup `json:"groups"`
	Missing    []string     `json:"missing,omitempty"`
	Time       time.Time    `json:"time"`
}

// Part is one part of a job's time.
type Part struct {
	Name string
	Time unit.Duration
}

// Parts lists where the time went, in the order in which it is told.
func (g *Goodput) Parts() []Part {
	return []Part{
		{"useful", g.Useful},
		{"checkpointing", g.Checkpointing},
		{"waiting", g.Waiting},
		{"starting", g.Starting},
		{"restarting", g.Restarting},
		{"stalled", g.Stalled},
		{"lost", g.Lost},
	}
}

// CheckpointList is a page of checkpoints. Where one run is asked for, it says how often the
// run's newest job saves; nil when its script decides.
type CheckpointList struct {
	List[Checkpoint]
	Saving *SavingPlan `json:"saving,omitempty"`
}

// SavingPlan is how often a job saves and what that was chosen by. What was not measured
// yet is zero.
type SavingPlan struct {
	Interval string        `json:"interval"`        // as it was asked for
	Steps    int64         `json:"steps,omitempty"` // between two saves
	Every    unit.Duration `json:"every,omitempty"` // between two saves; of auto, the best
	Best     unit.Duration `json:"best"`            // the time that loses least
	// Measured of the job: the mean stall of a save, the mean time from there until the step
	// is committed (zero where ranks wait for that), the mean time from a failure to the
	// next step, the mean time between failures.
	Stall    unit.Duration `json:"stall"`
	Upload   unit.Duration `json:"upload"`
	Restart  unit.Duration `json:"restart"`
	MTBF     unit.Duration `json:"meanTimeBetweenFailures"`
	Saves    int64         `json:"saves"`
	Failures int64         `json:"failures"`
}
