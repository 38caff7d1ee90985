package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Bounds of a Notice.
const (
	MaxNoticeText = 160
	MaxNoticeLeft = 24 * time.Hour
)

// Notice is what an agent says of its own node's end (head.notice.<node>), again and again
// until it is acknowledged. A head that does not know it does not answer.
type Notice struct {
	Session string `json:"session"`
	Boot    string `json:"boot"` // id of the node's boot
	// Number grows with everything that is said of this, over restarts of the agent.
	Number uint64 `json:"n"`
	// Left is the time until the node is gone, when this was sent.
	Left  unit.Duration `json:"left,omitempty"`
	Cause string        `json:"cause,omitempty"` // how it was noticed, at most MaxNoticeText bytes
	// Withdrawn: the node stays after all; Left and Cause say nothing.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// Check refuses a notice outside its bounds.
func (n *Notice) Check() error {
	switch {
	case n.Number == 0:
		return errors.New("a notice without a number")
	case len(n.Cause) > MaxNoticeText || len(n.Boot) > MaxNoticeText || len(n.Session) > MaxNoticeText:
		return fmt.Errorf("a text of a notice is longer than %d bytes", MaxNoticeText)
	case n.Withdrawn:
		return nil
	case n.Left.D() <= 0 || n.Left.D() > MaxNoticeLeft:
		return fmt.Errorf("%s are left, which is not within 0 and %s", n.Left.D(), MaxNoticeLeft)
	}
	return nil
}

// NoticeAck answers a Notice once it is in the log.
type NoticeAck struct {
	Number  uint64 `json:"n"`                 // of the notice
	Unknown bool   `json:"unknown,omitempty"` // session not known: register again
	Error   string `json:"error,omitempty"`   // refused, with the reason; not to be said again
	// Stays: it was withdrawn, and the node is drained or cordoned all the same; why.
	Stays string `json:"stays,omitempty"`
}
