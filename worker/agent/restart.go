package agent

import (
	"context"
	"errors"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// State is what an agent says of itself on its socket.
type State struct {
	Node    string `json:"node"`
	Session string `json:"session"` // of this start of the agent
	Version string `json:"version"`
	// Registered: a head knows this session.
	Registered bool `json:"registered"`
	// Running counts the allocations with ranks, Found those of them whose shim answers.
	Running int `json:"running"`
	Found   int `json:"found"`
}

// ErrNoRestart: whoever runs the agent cannot start it again; end and start it.
var ErrNoRestart = errors.New("this agent is part of another process and is not restarted alone: end that one and start it again")

// ReadState asks the agent that runs on stateDir.
func ReadState(ctx context.Context, stateDir string) (State, error) {
	return state(ctx, stateDir, "state")
}

// RequestRestart asks the agent that runs on stateDir to end and be started again, with
// its ranks running; the answer is its state before. The error is ErrNoRestart's text if
// it cannot.
func RequestRestart(ctx context.Context, stateDir string) (State, error) {
	return state(ctx, stateDir, "restart")
}

func state(ctx context.Context, stateDir, what string) (State, error) {
	r, err := askLocal(ctx, stateDir, localMessage{Type: what})
	if err != nil {
		return State{}, err
	}
	if r.State == nil {
		return State{}, errors.New("the agent is of an older version, which cannot be restarted this way: end it and start it again")
	}
	return *r.State, nil
}

// obeyLocal carries out what came over the agent's socket.
func (a *Agent) obeyLocal(m *localMessage) (localReply, error) {
	switch m.Type {
	case "env":
		return localReply{}, a.LocalEnv(m.Key, m.Env)
	case "state":
		s := a.state()
		return localReply{State: &s}, nil
	case "restart":
		if a.OnRestart == nil {
			return localReply{}, ErrNoRestart
		}
		s := a.state()
		a.OnRestart()
		return localReply{State: &s}, nil
	}
	return localReply{}, errors.New("unknown message type")
}

func (a *Agent) state() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := State{Node: a.NodeID, Session: a.session, Version: a.Version, Registered: a.open}
	for _, x := range a.allocs {
		if x.status.State != wire.AllocRunning && x.status.State != wire.AllocEnding {
			continue
		}
		s.Running++
		if x.heardAt > 0 {
			s.Found++
		}
	}
	return s
}
