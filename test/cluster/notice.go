package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// noticeFile is what the node's agent watches.
func (n *Node) noticeFile() string { return filepath.Join(n.dir, "notice") }

// Notice puts the notice file there, as whoever takes the machine away does.
func (n *Node) Notice(text string) {
	err := os.MkdirAll(n.dir, 0o700)
	if err == nil {
		err = os.WriteFile(n.noticeFile(), []byte(text), 0o600)
	}
	if err != nil {
		n.c.fail("node %s: %v", n.ID, err)
	}
}

// Withdraw takes the notice file away.
func (n *Node) Withdraw() {
	if err := os.Remove(n.noticeFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.c.fail("node %s: %v", n.ID, err)
	}
}

// SignalNotice sends the agent the signal; nothing happens where none runs.
func (n *Node) SignalNotice() {
	n.mu.Lock()
	r := n.agent
	n.mu.Unlock()
	if r != nil {
		r.notice("SIGPWR")
	}
}
