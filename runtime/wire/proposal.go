package wire

// ProposalState is how far a proposal has come.
type ProposalState string

// States of a proposal.
const (
	ProposalOpen    ProposalState = "open"
	ProposalAgreed  ProposalState = "agreed"
	ProposalDropped ProposalState = "dropped"
)

// Proposal asks all ranks of an attempt to save after the same step (DESIGN §8). Shims
// hear it as desired state, so that a lost message or a lost leader changes nothing.
type Proposal struct {
	Number uint64        `json:"n"` // grows over the life of a job; 0: none
	Target int64         `json:"t"` // the step
	State  ProposalState `json:"s"`
	Stop   bool          `json:"stop,omitempty"` // the ranks end after the save
}

// RankAnswer is the one answer of a rank to a proposal, given by its shim.
type RankAnswer struct {
	Rank   int64  `json:"rank"`
	Number uint64 `json:"n"`
	Yes    bool   `json:"yes,omitempty"` // bound: it holds at the step until the verdict
	Why    string `json:"why,omitempty"` // of a refusal, one word
}
