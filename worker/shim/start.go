package shim

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/numa"
	"github.com/troupe-runtime/troupe/worker/process"
)

// How a rank is started that the shim cannot start itself (see direct). The shim runs a
// middle process, which starts one rank-init for each rank, in its cgroup and session, and
// exits. The rank-inits are then children of the shim, its main thread to be exact, which
// never ends while the shim lives: only so does PDEATHSIG mean the shim's death and not that
// of a thread. A rank-init gets its spec over a socket, prepares itself, reports its pid
// and waits for the word to go; a closed socket then says that exec succeeded.

const (
	modeMiddle   = "middle"
	modeRankInit = "rank-init"
	selfExe      = "/proc/self/exe" // also after the file was replaced by an upgrade
	maxSpec      = 8 << 20
	startLimit   = 60 * time.Second // for all ranks; a shared file system can be slow to exec from
	ctlFD        = 3
)

// initSpec is what a rank-init needs.
type initSpec struct {
	Shim   int      `json:"shim"` // pid that must be the parent
	Dir    string   `json:"dir"`
	Argv   []string `json:"argv"`
	Env    []string `json:"env"`
	Stdout string   `json:"stdout"`
	Stderr string   `json:"stderr"`
	Procs  string   `json:"procs,omitempty"` // cgroup2 file to write, if not cloned into it
	Tasks  string   `json:"tasks,omitempty"` // v1 memory file to write
	CPUs   []int    `json:"cpus,omitempty"`  // that it is bound to
	// For a rank that a forkserver starts.
	Args  []string `json:"args,omitempty"`  // of its script
	Learn string   `json:"learn,omitempty"` // file for what it imports
}

// initReport is what a rank-init says: first ready (PID set) or failed, and after
// the word to go only a failure.
type initReport struct {
	PID   int    `json:"pid,omitempty"`
	Error string `json:"error,omitempty"`
	Code  int64  `json:"code,omitempty"`  // of unusable
	Errno int64  `json:"errno,omitempty"` // of a working directory, from a forkserver's rank
}

func (r initReport) err() error {
	if r.Code != 0 {
		return &unusable{code: r.Code, text: r.Error}
	}
	return errors.New(r.Error)
}

// The shell's exit codes for a command that cannot be run.
const (
	exitNotFound   = 127
	exitCannotExec = 126
)

// unusable is a command or working directory that is no good: the user's to mend, where
// every other failure of a start is the machine's.
type unusable struct {
	code int64
	text string
}

func (e *unusable) Error() string { return e.text }

func unusablef(code int64, format string, args ...any) error {
	return &unusable{code: code, text: fmt.Sprintf(format, args...)}
}

// unusableCode is the code of an error in its chain, 0 for the machine's errors.
func unusableCode(err error) int64 {
	if u, ok := errors.AsType[*unusable](err); ok {
		return u.code
	}
	return 0
}

// started is one rank between fork and exec, or before both.
type started struct {
	pid    int
	ctl    *os.File
	direct *direct // nil: a rank-init waits for the word
}

func (s *started) close() {
	if s.ctl != nil {
		s.ctl.Close()
		s.ctl = nil
	}
}

// errStillborn is wrapped when a rank-init was gone before it could say anything.
var errStillborn = errors.New("a rank ended before it was ready")

// startRanks prepares a rank for each spec, up to where only the word to go is missing. The
// cgroup2 directory of each stands in groups ("" for none).
func startRanks(r *reaper, cookie string, specs []initSpec, groups []string) ([]*started, error) {
	if ranks, ok := directly(r, cookie, specs, groups); ok {
		return ranks, nil
	}
	return forkRanks(r, cookie, specs, groups)
}

// forkRanks starts a rank-init for each spec and waits until all are ready.
func forkRanks(r *reaper, cookie string, specs []initSpec, groups []string) ([]*started, error) {
	ranks, err := tryFork(r, cookie, specs, groups)
	if errors.Is(err, errStillborn) && groups[0] != "" {
		// Cloned into a group that had been killed before (process.Groups.Fresh): they
		// join by themselves now, which takes some milliseconds longer.
		log.Printf("%v; trying again without cloning into the cgroup", err)
		ranks, err = tryFork(r, cookie, specs, make([]string, len(groups)))
	}
	return ranks, err
}

// tryFork is one try of forkRanks. On an error nothing of it goes on: a rank-init
// whose socket closes before the word ends itself.
func tryFork(r *reaper, cookie string, specs []initSpec, groups []string) (_ []*started, err error) {
	ranks := make([]*started, len(specs))
	defer func() {
		if err != nil {
			closeAll(ranks)
		}
	}()
	files := []uintptr{0, 2, 2, 0}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	files[0] = uintptr(null)
	complaint, say, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer complaint.Close()
	defer say.Close()
	files[ctlFD] = say.Fd()

	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for i := range specs {
		s, fd, err := rankSocket()
		if err != nil {
			return nil, err
		}
		ranks[i] = s
		fds = append(fds, fd)
		files = append(files, uintptr(fd))
	}
	grouped := len(groups) > 0 && groups[0] != ""
	if grouped {
		for _, g := range groups {
			fd, err := unix.Open(g, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("open cgroup %s: %w", g, err)
			}
			fds = append(fds, fd)
			files = append(files, uintptr(fd))
		}
	}
	done := make(chan unix.WaitStatus, 1)
	argv := []string{"troupe-shim", "shim", modeMiddle, strconv.Itoa(len(specs)), strconv.FormatBool(grouped)}
	attr := &syscall.ProcAttr{Dir: "/", Env: hiddenEnv(cookie), Files: files}
	r.forget()
	if _, err := r.start(func() (int, error) { return syscall.ForkExec(selfExe, argv, attr) },
		func(ws unix.WaitStatus) { done <- ws }); err != nil {
		return nil, fmt.Errorf("start the middle process: %w", err)
	}
	say.Close()
	for _, fd := range fds {
		unix.Close(fd)
	}
	fds = nil
	if ws := <-done; !ws.Exited() || ws.ExitStatus() != 0 {
		text, _ := io.ReadAll(io.LimitReader(complaint, 4096))
		return nil, fmt.Errorf("the middle process ended with status %d: %s", ws.ExitStatus(), strings.TrimSpace(string(text)))
	}
	// All are children of the shim from here on.
	return ranks, handshake(ranks, specs)
}

// handshake hands each rank its spec and waits until all are ready.
func handshake(ranks []*started, specs []initSpec) error {
	deadline := time.Now().Add(startLimit)
	for i, s := range ranks {
		_ = s.ctl.SetDeadline(deadline)
		if err := WriteFrame(s.ctl, maxSpec, specs[i]); err != nil {
			return fmt.Errorf("%w: hand over its spec: %w", errStillborn, err)
		}
	}
	for i, s := range ranks {
		var rep initReport
		if err := ReadFrame(s.ctl, 64<<10, &rep); err != nil {
			return fmt.Errorf("%w: %w", errStillborn, err)
		}
		if rep.Errno != 0 {
			return noFolder(specs[i].Dir, unix.Errno(rep.Errno))
		}
		if rep.Error != "" {
			return rep.err()
		}
		s.pid = rep.PID
	}
	return nil
}

// rankSocket makes the socket of one rank: the shim's end, and the rank's as a descriptor.
func rankSocket() (*started, int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a socket pair: %w", err)
	}
	_ = unix.SetNonblock(pair[0], true)
	return &started{ctl: os.NewFile(uintptr(pair[0]), "rank")}, pair[1], nil
}

func closeAll(ranks []*started) {
	for _, s := range ranks {
		if s != nil {
			s.close()
		}
	}
}

// claim has tell called with the end of the rank, once it has the word to go.
func (s *started) claim(r *reaper, tell func(pid int, ws unix.WaitStatus)) {
	if s.direct != nil {
		s.direct.tell = tell
		return
	}
	r.claim(s.pid, func(ws unix.WaitStatus) { tell(s.pid, ws) })
}

// release gives the word to go. A rank that is gone shows in confirm.
func (s *started) release() {
	if s.direct != nil {
		s.direct.start(s)
		return
	}
	s.word()
}

func (s *started) word() { _, _ = s.ctl.Write([]byte{'g'}) }

// confirm waits until exec has happened and returns why it failed, nil when the
// rank's own program runs.
func (s *started) confirm() error {
	defer s.close()
	if s.ctl == nil { // started directly, or not at all
		return s.direct.err
	}
	var rep initReport
	err := ReadFrame(s.ctl, 64<<10, &rep)
	switch {
	case err == nil && rep.Error != "":
		return rep.err()
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil // or it was killed, which its exit status tells
	case err == nil:
		return errors.New("rank-init spoke out of turn")
	}
	return fmt.Errorf("wait for the start of a rank: %w", err)
}

// hiddenEnv is the environment of middle and rank-init: nothing of the shim's, one
// thread of Go code, and the mark, so that a sweep finds them too.
func hiddenEnv(cookie string) []string {
	return []string{process.CookieEnv + "=" + cookie, "GOMAXPROCS=1", "GOGC=off"}
}

// middleMain starts the rank-inits and exits. args: number of ranks, whether their
// cgroups follow as descriptors.
func middleMain(args []string) int {
	fail := func(format string, a ...any) int {
		fmt.Fprintf(os.NewFile(ctlFD, "complaint"), format, a...)
		return 1
	}
	if len(args) != 2 {
		return fail("middle wants 2 arguments")
	}
	closeOnExec()
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > maxRanks {
		return fail("middle: %q ranks", args[0])
	}
	for i := range n {
		attr := &syscall.ProcAttr{
			Dir: "/", Env: os.Environ(),
			Files: []uintptr{0, 1, 2, uintptr(ctlFD + 1 + i)},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		}
		argv := []string{"troupe-shim", "shim", modeRankInit, "joined"}
		if args[1] == "true" {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, ctlFD+1+n+i
			if _, err = syscall.ForkExec(selfExe, argv, attr); err == nil {
				continue
			}
			// A filter on clone3 is common in containers; the rank joins by itself then.
			attr.Sys.UseCgroupFD = false
		}
		argv[3] = "join"
		if _, err = syscall.ForkExec(selfExe, argv, attr); err != nil {
			return fail("start rank-init: %v", err)
		}
	}
	return 0
}

// rankInitMain turns into the rank. It never returns when all goes well.
func rankInitMain(args []string) int {
	lockThread() // PDEATHSIG and the v1 group belong to a thread; exec must happen on it
	closeOnExec()
	ctl := os.NewFile(ctlFD, "shim")
	var spec initSpec
	if err := ReadFrame(ctl, maxSpec, &spec); err != nil {
		return 1 // the shim gave up; nobody listens
	}
	fail := func(format string, a ...any) int {
		_ = WriteFrame(ctl, 64<<10, initReport{Error: fmt.Sprintf(format, a...)})
		return 1
	}
	refuse := func(err error) int {
		_ = WriteFrame(ctl, 64<<10, initReport{Error: err.Error(), Code: unusableCode(err)})
		return 1
	}
	if len(args) == 0 || args[0] != "joined" {
		if spec.Procs != "" {
			if err := os.WriteFile(spec.Procs, []byte("0"), 0); err != nil {
				return fail("join cgroup %s: %v", spec.Procs, err)
			}
		}
	}
	if spec.Tasks != "" {
		// "0" in tasks moves the calling thread without the global lock that moving a
		// whole process takes (milliseconds); exec makes this thread the process.
		if err := os.WriteFile(spec.Tasks, []byte("0"), 0); err != nil {
			return fail("join memory cgroup %s: %v", spec.Tasks, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fail("set the parent death signal: %v", err)
	}
	if os.Getppid() != spec.Shim {
		return 1 // the shim died before the signal was set
	}
	if err := bind(spec.CPUs); err != nil {
		return fail("%v", err)
	}
	if err := redirect(spec.Stdout, 1); err != nil {
		return fail("%v", err)
	}
	if err := redirect(spec.Stderr, 2); err != nil {
		return fail("%v", err)
	}
	if err := os.Chdir(spec.Dir); err != nil {
		return refuse(noFolder(spec.Dir, cause(err)))
	}
	path, err := lookPath(spec.Argv, spec.Env)
	if err != nil {
		return refuse(err)
	}
	if err := WriteFrame(ctl, 64<<10, initReport{PID: os.Getpid()}); err != nil {
		return 1
	}
	var word [1]byte
	if n, err := ctl.Read(word[:]); n != 1 || err != nil {
		return 1
	}
	err = syscall.Exec(path, spec.Argv, spec.Env)
	return refuse(execFailure(path, err))
}

// closeOnExec keeps every descriptor but the standard three out of what is started:
// a rank that held its neighbour's socket would hide that the neighbour runs.
func closeOnExec() {
	if unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for fd := 3; fd < 4096; fd++ { // kernel older than 5.11
		unix.CloseOnExec(fd)
	}
}

// bind has this thread, and so the program that it becomes, run on some CPUs only.
func bind(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to CPUs %s: %w", numa.FormatList(cpus), err)
	}
	return nil
}

func redirect(path string, fd int) error {
	f, err := openOutput(path)
	if err != nil {
		return err
	}
	if err := unix.Dup3(f, fd, 0); err != nil {
		return fmt.Errorf("redirect output to %s: %w", path, err)
	}
	return nil
}

func openOutput(path string) (int, error) {
	f, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return -1, fmt.Errorf("open output file %s: %w", path, err)
	}
	return f, nil
}
