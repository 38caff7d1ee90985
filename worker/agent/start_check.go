package agent

import (
	"context"
	"os"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// startChecker is a Launcher that can say beforehand whether a command would start. One
// that cannot has no folders and programs, as in the simulated cluster.
type startChecker interface {
	// CheckStart looks for the folder and the program; code is 126 or 127 when the
	// command or the folder is no good, which is the user's to mend.
	CheckStart(dir string, argv []string, path string) (code int64, err error)
}

// onStartCheck says whether a job's folder and program are there.
func (a *Agent) onStartCheck(_ context.Context, m bus.Msg) {
	var c wire.StartCheck
	if err := wire.Unmarshal(m.Data, &c); err != nil {
		a.Logger.Warn("a malformed question was refused", "err", err)
		return
	}
	a.spawn(func() { a.respond(m, a.checkStart(&c)) }) // a file system may be slow to answer
}

func (a *Agent) checkStart(c *wire.StartCheck) wire.StartCheckReply {
	look, ok := a.Launcher.(startChecker)
	if !ok {
		return wire.StartCheckReply{}
	}
	a.mu.Lock()
	at := a.launches.local(&wire.AttemptSpec{WorkingDir: c.WorkingDir, Command: c.Command, LaunchEnv: c.LaunchEnv})
	env, known := a.env.get(c.LaunchEnv)
	a.mu.Unlock()
	if c.LaunchEnv != "" && !known {
		return wire.StartCheckReply{} // the start itself says what is wrong
	}
	// What the job says comes last, as in the rank's environment.
	path := os.Getenv("PATH")
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	if c.Path != "" {
		path = c.Path
	}
	if c.Package != "" {
		return a.checkInPackage(c, func(dir string) (int64, error) { return look.CheckStart(dir, at.Command, path) })
	}
	code, err := look.CheckStart(at.WorkingDir, at.Command, path)
	if err == nil {
		return wire.StartCheckReply{}
	}
	return wire.StartCheckReply{Error: clip(err.Error()), Code: code}
}
