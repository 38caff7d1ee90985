package shim

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
)

// spawner starts processes of the allocation that are no ranks, in their own group. A
// sweep of the ranks must spare them, and cannot tell one that is just being started: so
// there is never a start during a sweep.
type spawner struct {
	rip    *reaper
	cookie string
	groups func() process.Groups

	mu   sync.Mutex
	kept map[int]bool
	over bool
}

// hold keeps everything from being started until release, and lists what was.
func (sp *spawner) hold() (keep []int, release func()) {
	sp.mu.Lock()
	for pid := range sp.kept {
		keep = append(keep, pid)
	}
	return keep, sp.mu.Unlock
}

// close makes every later start fail.
func (sp *spawner) close() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.over = true
}

// child is such a process.
type child struct {
	pid   int
	ended chan struct{}
	ws    unix.WaitStatus // when ended
}

// spawn runs a command; its output goes to a file.
func (sp *spawner) spawn(dir string, argv, env []string, out string) (*child, error) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.over {
		return nil, errors.New("the allocation is ending")
	}
	spec := initSpec{Shim: os.Getpid(), Dir: dir, Argv: argv, Env: env, Stdout: out, Stderr: out}
	group, tasks := sp.groups().WarmDirs()
	spec.Tasks = tasks
	if group != "" {
		spec.Procs = filepath.Join(group, "cgroup.procs")
	}
	list, err := forkRanks(sp.rip, sp.cookie, []initSpec{spec}, []string{group})
	if err != nil {
		return nil, err
	}
	c := sp.claim(list[0].pid)
	list[0].release()
	if err := list[0].confirm(); err != nil {
		return nil, err
	}
	return c, nil
}

// adopt takes a process that was started before this program.
func (sp *spawner) adopt(pid int) *child {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.claim(pid)
}

// claim notes a child and its end. sp.mu is held.
func (sp *spawner) claim(pid int) *child {
	c := &child{pid: pid, ended: make(chan struct{})}
	sp.kept[pid] = true
	sp.rip.claim(pid, func(ws unix.WaitStatus) {
		c.ws = ws
		close(c.ended)
		go sp.forget(pid)
	})
	return c
}

// move puts an adopted process into the allocation's own group.
func (sp *spawner) move(pid int) {
	group, tasks := sp.groups().WarmDirs()
	for _, file := range []string{filepath.Join(group, "cgroup.procs"), tasks} {
		if group == "" && file != tasks || file == "" {
			continue
		}
		if err := os.WriteFile(file, strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
			log.Printf("move the forkserver: %v", err)
		}
	}
}

func (sp *spawner) forget(pid int) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	delete(sp.kept, pid)
}
