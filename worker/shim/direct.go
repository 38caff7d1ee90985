package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
)

// A rank of which everything that its exec reads lies on a disk of this machine needs no
// rank-init: the shim starts the program itself. Until a program's exec has succeeded the
// forking process stands still, all of it, so a folder or a program on a network is left to
// a rank-init, which may hang alone. So is whatever goes wrong here: a rank-init tries again,
// and says what it is.

// direct is a rank that the word to go starts.
type direct struct {
	rip    *reaper
	cookie string
	spec   *initSpec
	group  string // its cgroup2 directory, "" for none
	path   string // of the program, as seen from its folder
	tell   func(pid int, ws unix.WaitStatus)
	err    error
}

// directly prepares direct starts; false when one of the ranks cannot be started so.
func directly(r *reaper, cookie string, specs []initSpec, groups []string) ([]*started, bool) {
	ranks := make([]*started, len(specs))
	for i := range specs {
		// The v1 groups of memory are joined by the one who becomes the rank.
		if specs[i].Tasks != "" || specs[i].Procs != "" && groups[i] == "" {
			return nil, false
		}
		var path string
		if i > 0 && alike(&specs[0], &specs[i]) {
			path = ranks[0].direct.path
		} else if p, ok := onLocalDisk(&specs[i]); ok {
			path = p
		} else {
			return nil, false
		}
		ranks[i] = &started{direct: &direct{rip: r, cookie: cookie, spec: &specs[i], group: groups[i], path: path}}
	}
	return ranks, true
}

// alike reports whether two ranks start the same program in the same folder.
func alike(p, q *initSpec) bool {
	return p.Dir == q.Dir && p.Argv[0] == q.Argv[0] && pathOf(p.Env) == pathOf(q.Env)
}

// start starts the rank and hands its end to tell.
func (d *direct) start(s *started) {
	err := d.tryStart(s)
	if err == nil {
		return
	}
	list, err := tryFork(d.rip, d.cookie, []initSpec{*d.spec}, []string{""})
	if err != nil {
		d.err = err
		return
	}
	s.ctl, s.pid = list[0].ctl, list[0].pid
	d.rip.claim(s.pid, func(ws unix.WaitStatus) { d.tell(s.pid, ws) })
	s.word()
}

func (d *direct) tryStart(s *started) error {
	var files [3]int
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	for i, path := range []string{os.DevNull, d.spec.Stdout, d.spec.Stderr} {
		fd, err := openOutput(path)
		if i == 0 {
			fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return err
		}
		files[i], open = fd, append(open, fd)
	}
	attr := &syscall.ProcAttr{
		Dir: d.spec.Dir, Env: d.spec.Env, Files: []uintptr{uintptr(files[0]), uintptr(files[1]), uintptr(files[2])},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if d.group != "" {
		fd, err := unix.Open(d.group, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		open = append(open, fd)
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
	}
	_, err := d.rip.start(func() (pid int, err error) {
		d.rip.thread(func() {
			if err = bind(d.spec.CPUs); err != nil {
				return
			}
			if len(d.spec.CPUs) > 0 {
				defer func() { _ = unix.SchedSetaffinity(0, &d.rip.cpus) }()
			}
			pid, err = syscall.ForkExec(d.path, d.spec.Argv, attr)
		})
		if err == nil && d.group != "" && process.NeverRan(pid) {
			// Killed as it was cloned into a group that had been killed before: see Groups.Fresh.
			_, _ = unix.Wait4(pid, nil, 0, nil)
			err = errStillborn
		}
		s.pid = pid
		return pid, err
	}, func(ws unix.WaitStatus) { d.tell(s.pid, ws) })
	return err
}

// onLocalDisk looks the program up as the rank would, and reports whether its folder, the
// program and what the program names to run it are on disks of this machine.
func onLocalDisk(spec *initSpec) (path string, ok bool) {
	if !filepath.IsAbs(spec.Dir) || !local(spec.Dir) || unix.Access(spec.Dir, unix.X_OK) != nil {
		return "", false
	}
	path, err := lookPathIn(spec.Dir, spec.Argv, spec.Env)
	if err != nil {
		return "", false
	}
	for file := within(spec.Dir, path); file != ""; {
		if !local(file) {
			return "", false
		}
		if file, err = interpreter(file); err != nil {
			return "", false
		}
	}
	return path, true
}

// interpreter is what the first line of a script names; "" for any other program.
func interpreter(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var head [256]byte // as much as the kernel looks at
	n, err := f.Read(head[:])
	if err != nil {
		return "", err
	}
	line, script := bytes.CutPrefix(head[:n], []byte("#!"))
	if !script {
		return "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return "", fmt.Errorf("%s names no interpreter", file)
	}
	if same, err := filepath.EvalSymlinks(words[0]); err != nil || same == file {
		return "", errors.Join(err, errors.New("a script that is its own interpreter"))
	}
	return words[0], nil
}

// localDisks are the file systems that never wait for another machine.
var localDisks = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC,
	unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1,
	0x2fc12fc1, // ZFS
}

func local(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && slices.Contains(localDisks, int64(st.Type))
}

// thread runs f on the one thread that starts ranks. It never ends while the shim lives:
// PDEATHSIG is sent when the thread that forked ends, not the process.
func (r *reaper) thread(f func()) {
	r.forker.Do(func() {
		calls := make(chan func())
		r.forks = calls
		go func() {
			runtime.LockOSThread()
			_ = unix.SchedGetaffinity(0, &r.cpus)
			for f := range calls {
				f()
			}
		}()
	})
	done := make(chan struct{})
	r.forks <- func() { defer close(done); f() }
	<-done
}
