package shim

import (
	"errors"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper is the one place that waits for children. A shim is a subreaper, so
// processes it has never heard of become its children when their parents die; all
// of them are reaped, and those that somebody asked for are told.
type reaper struct {
	mu   sync.Mutex
	told map[int]func(unix.WaitStatus)
	// lost keeps how recent unknown children ended: a rank can die between its
	// adoption and the moment its pid is known here.
	lost  map[int]unix.WaitStatus
	queue []int

	forker sync.Once
	forks  chan<- func()
	cpus   unix.CPUSet // that the forking thread may run on
}

const lostMax = 256

func newReaper() *reaper {
	return &reaper{told: map[int]func(unix.WaitStatus){}, lost: map[int]unix.WaitStatus{}}
}

// run reaps until the process ends. tell functions run on its goroutine, in the
// order in which children were reaped, and must not block.
func (r *reaper) run() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	for {
		r.reapAll()
		<-ch
	}
}

func (r *reaper) reapAll() {
	for {
		r.mu.Lock()
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		tell := r.told[pid]
		delete(r.told, pid)
		if tell == nil {
			r.keepLost(pid, ws)
		}
		r.mu.Unlock()
		if tell != nil {
			tell(ws)
		}
	}
}

func (r *reaper) keepLost(pid int, ws unix.WaitStatus) {
	if _, ok := r.lost[pid]; !ok {
		r.queue = append(r.queue, pid)
	}
	r.lost[pid] = ws
	if len(r.queue) > lostMax {
		delete(r.lost, r.queue[0])
		r.queue = r.queue[1:]
	}
}

// start forks a child and registers tell before its end can be reaped.
func (r *reaper) start(fork func() (int, error), tell func(unix.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err == nil {
		delete(r.lost, pid)
		r.told[pid] = tell
	}
	return pid, err
}

// forget drops what is known of unknown children. It is called before a start, so
// that a claim cannot meet the end of an earlier process with the same pid.
func (r *reaper) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.lost)
	r.queue = nil
}

// claim registers tell for an adopted child, or calls it at once if the child has
// ended already.
func (r *reaper) claim(pid int, tell func(unix.WaitStatus)) {
	r.mu.Lock()
	ws, ended := r.lost[pid]
	if ended {
		delete(r.lost, pid)
	} else {
		r.told[pid] = tell
	}
	r.mu.Unlock()
	if ended {
		tell(ws)
	}
}

// signal sends sig to a child that has not been reaped, so that the pid cannot
// belong to another process. It reports whether the child was there.
func (r *reaper) signal(pid int, sig unix.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.told[pid]; !ok || pid <= 0 {
		return false
	}
	return unix.Kill(pid, sig) == nil
}
