package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Patience bounds how long a sweep waits for killed processes: what is alive then
// hangs in the kernel and will not die by waiting.
const Patience = 10 * time.Second

// Target names what a sweep ends. Each part that is set is a net of its own; the
// sweep ends the union of what they hold.
type Target struct {
	Cookie string // processes started with this mark
	Groups Groups // processes in these groups
	// Whole also ends the group of the shim: the agent's sweep after its death.
	Whole bool
	// Root ends this process and its descendants, or only those when it is the caller,
	// which should be a subreaper; 0: none.
	Root int
	// Keep spares these processes and their descendants; of the sweeper itself only
	// the process is spared.
	Keep []int
	// Near takes the groups and the tree for the whole proof where they can give one: the
	// caller is Root, a subreaper, there is a group to kill, and nothing is kept. What
	// somebody outside has started with the mark is left to a later SweepMarks. It spares the
	// look at every process of the machine.
	Near bool
}

// Left is a process that did not die.
type Left struct {
	PID   int
	State string // as in /proc: "D" hangs in the kernel
	Name  string
}

// String names the process for people.
func (l Left) String() string {
	return fmt.Sprintf("process %d (%s, state %s)", l.PID, l.Name, l.State)
}

// Result is what a sweep did.
type Result struct {
	Killed int    // processes that were sent SIGKILL one by one
	Left   []Left // alive after Patience
	// Unproven is why nothing was found alive and yet nothing is proven: the machine
	// could not be looked at, or a group holds what cannot be seen from here.
	Unproven error
}

// Clean reports whether it is proven that nothing is left.
func (r Result) Clean() bool { return len(r.Left) == 0 && r.Unproven == nil }

// Error names what is left, nil when clean.
func (r Result) Error() error {
	if len(r.Left) == 0 {
		if r.Unproven != nil {
			return fmt.Errorf("it is not proven that nothing is left: %w", r.Unproven)
		}
		return nil
	}
	names := make([]string, len(r.Left))
	for i, l := range r.Left {
		names[i] = l.String()
	}
	return errors.New("did not die: " + strings.Join(names, ", "))
}

// Sweep sends SIGKILL to everything the target names and returns when it is proven that
// none of it is alive, or after Patience, or when ctx ends, with what is left (P6). What
// cannot be looked at is not taken for gone (P2). It is safe to call when nothing is
// there.
func Sweep(ctx context.Context, t Target) Result {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	s := newScanner(t)
	return sweep(ctx, s, s.kill)
}

func sweep(ctx context.Context, s *scanner, kill func(Proc) bool) Result {
	var res Result
	t := s.t
	// One clean scan can miss a process whose parent forked it and died while the
	// scan passed; an unpopulated group proves, and without one a second scan must agree.
	need := 2
	if t.Groups.Kill != "" {
		need = 1
	}
	near := s.near()
	pause, clean := firstPause, 0
	for {
		if near && s.alone() {
			return res
		}
		var err error
		if t.Whole {
			err = t.Groups.KillAll()
		} else {
			err = t.Groups.KillRanks()
		}
		if near && err == nil && pause < nearPatience && ctx.Err() == nil {
			// What the group held dies within moments; only what has left it has to be found.
			time.Sleep(pause)
			pause *= 2
			continue
		}
		found, scanned := s.scan()
		for _, p := range found {
			start, again := s.met[p.PID]
			s.met[p.PID] = p.Start
			if kill(p) && !(again && start == p.Start) {
				res.Killed++
			}
		}
		full, looked := s.populated()
		if err = errors.Join(err, scanned, looked); err == nil && full && len(found) == 0 {
			err = fmt.Errorf("cgroup %s holds a process that cannot be seen", t.Groups.Kill)
		}
		if err == nil && len(found) == 0 {
			if clean++; clean >= need {
				return res
			}
			// In the middle of an exec a process shows no environment at all.
			pause = max(pause, 2*time.Millisecond)
		} else {
			clean = 0
		}
		select {
		case <-ctx.Done():
			for _, p := range found {
				res.Left = append(res.Left, Left{PID: p.PID, State: string(p.State), Name: p.Name})
			}
			// A sweep that was cut short proves nothing either.
			if res.Unproven = err; err == nil && len(found) == 0 {
				res.Unproven = ctx.Err()
			}
			return res
		case <-time.After(pause):
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

const (
	firstPause = 200 * time.Microsecond
	// nearPatience is how far the pauses of a near sweep grow before it looks at every
	// process of the machine after all.
	nearPatience = 2 * time.Millisecond
)

// near reports whether the groups and the tree alone can prove that nothing is left.
func (s *scanner) near() bool {
	t := &s.t
	if !t.Near || t.Whole || t.Root != s.self || t.Groups.Kill == "" || len(t.Keep) > 0 {
		return false
	}
	var is int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0, 0, 0) //nolint:gosec // audited: the kernel writes one int32 there
	return err == nil && is != 0
}

// alone reports whether the group is empty and the caller has no child, not even one that
// nobody has waited for yet. The descendants of a subreaper are below its children, however
// often their parents have died: without a child there is none of them.
func (s *scanner) alone() bool {
	if full, err := s.populated(); full || err != nil {
		return false
	}
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return errors.Is(err, unix.ECHILD)
		}
	}
}

// RSS sums the resident memory of what the target names, for a machine without a
// memory controller. Shared pages count for each process.
func RSS(t Target) int64 {
	var sum int64
	found, _ := newScanner(t).scan()
	for _, p := range found {
		sum += rss(p.PID)
	}
	return sum
}

// Find lists what of the target is seen alive now. It proves nothing; see Sweep.
func Find(t Target) []Proc {
	found, _ := newScanner(t).scan()
	return found
}

type scanner struct {
	t    Target
	mark []byte
	buf  []byte
	self int
	// met holds pid and start of what the sweep has found: one that is about to end
	// has lost its environment and its group before it has let go of its devices.
	met map[int]uint64
	// What a scan asks of the machine.
	list   func() ([]int, error)
	read   func(pid int) (Proc, error)
	marked func(pid int) (bool, error)
}

func newScanner(t Target) *scanner {
	s := &scanner{t: t, self: unix.Getpid(), met: map[int]uint64{}, list: pids, read: ReadProc}
	s.marked = func(pid int) (bool, error) { return hasMark(pid, [][]byte{s.mark}, s.buf) }
	if t.Cookie != "" {
		s.mark = markOf(t.Cookie)
		s.buf = make([]byte, 16<<10)
	}
	return s
}

func (s *scanner) populated() (bool, error) {
	g := s.t.Groups
	if g.Kill == "" {
		return false, nil
	}
	if s.t.Whole {
		return populated(g.Kill)
	}
	return populated(g.sub(g.Kill, "ranks"))
}

// scan returns the live processes of the target that it sees. With an error it may
// not have seen all.
func (s *scanner) scan() ([]Proc, error) {
	list, err := s.list()
	if err != nil {
		return nil, fmt.Errorf("list the processes of the machine: %w", err)
	}
	// One reason is enough: a machine without descriptors gives the same for each process.
	var failed error
	note := func(err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	look := func(pid int) (Proc, bool) {
		p, err := s.read(pid)
		if err != nil && !telling(err) {
			note(err)
		}
		return p, err == nil
	}
	// Without a tree to follow only what is found needs its row of the table.
	tree := s.t.Root != 0 || len(s.t.Keep) > 0
	procs := map[int]Proc{}
	if tree {
		for _, pid := range list {
			if p, ok := look(pid); ok {
				procs[pid] = p
			}
		}
	}
	spared := map[int]bool{}
	for _, pid := range s.t.Keep {
		spared[pid] = true
	}
	grouped := map[int]bool{}
	for _, base := range []string{s.t.Groups.Kill, s.t.Groups.Memory} {
		part := s.t.Groups.sub(base, "ranks")
		if s.t.Whole {
			part = base
		}
		pids, err := members(part)
		note(err)
		for _, pid := range pids {
			grouped[pid] = true
		}
	}
	root := map[int]bool{s.t.Root: true}
	var found []Proc
	for _, pid := range list {
		p, known := procs[pid]
		if pid == s.self || tree && (!known || p.Dead() || under(procs, pid, spared)) {
			continue
		}
		start, met := s.met[pid]
		is := grouped[pid] || s.t.Root != 0 && under(procs, pid, root)
		if !is && s.mark != nil {
			var err error
			is, err = s.marked(pid)
			note(err)
		}
		if !known && (is || met) {
			if p, known = look(pid); !known {
				continue
			}
		}
		if (is || met && start == p.Start) && !p.Dead() {
			found = append(found, p)
		}
	}
	return found, failed
}

// under reports whether pid is one of roots or a descendant of one. The walk is
// bounded, since the table was not read at one moment and could show a circle.
func under(procs map[int]Proc, pid int, roots map[int]bool) bool {
	for range 1000 {
		if roots[pid] {
			return true
		}
		p, ok := procs[pid]
		if !ok || p.PPID <= 0 {
			return false
		}
		pid = p.PPID
	}
	return false
}

// kill ends exactly the process that was scanned, not a later one with its pid.
func (s *scanner) kill(p Proc) bool {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if now, err := ReadProc(p.PID); err != nil || now.Start != p.Start {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
