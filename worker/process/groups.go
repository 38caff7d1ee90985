package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

const groupDir = "troupe"

// Groups are the control groups of one allocation:
//
//	<root>/troupe/<alloc>/shim        the shim and its saver
//	<root>/troupe/<alloc>/warm        the forkserver that ranks are forked from
//	<root>/troupe/<alloc>/ranks/<r>   local rank r and everything it starts
//
// Limits, out-of-memory kills and cgroup.kill concern ranks only. The zero value is
// an allocation without groups. It is plain data so that a journal can hold it: the
// agent sweeps with it after the shim died.
type Groups struct {
	Kill     string `json:"kill,omitempty"`   // <root>/troupe/<alloc> in cgroup2
	Memory   string `json:"memory,omitempty"` // the same in the memory hierarchy
	MemoryV2 bool   `json:"memoryV2,omitempty"`
}

// PlannedGroups are where NewGroups makes them; nothing is made. Whoever writes them down
// first can sweep them though it died while they were made.
func PlannedGroups(c Capabilities, alloc string, memory unit.Bytes) (g Groups) {
	if !plainName(alloc) {
		return g
	}
	if c.KillRoot != "" {
		g.Kill = filepath.Join(c.KillRoot, groupDir, alloc)
	}
	if c.MemoryRoot != "" && memory > 0 {
		g.Memory, g.MemoryV2 = filepath.Join(c.MemoryRoot, groupDir, alloc), c.MemoryV2
	}
	return g
}

// NewGroups makes the groups of an allocation and sets the limit on its ranks.
// alloc must be a plain name. What could not be made is left out and told in
// fallbacks, one sentence each: an allocation runs with weaker containment rather
// than not at all.
func NewGroups(c Capabilities, alloc string, memory unit.Bytes) (g Groups, fallbacks []string) {
	if !plainName(alloc) {
		return Groups{}, []string{fmt.Sprintf("allocation name %q cannot name a cgroup", alloc)}
	}
	if c.KillRoot == "" {
		fallbacks = append(fallbacks, "no cgroup.kill: ranks are ended by session, tree and mark ("+strings.Join(c.Why, "; ")+")")
	} else {
		g.Kill = filepath.Join(c.KillRoot, groupDir, alloc)
		// Old groups of that name may have been killed once; see Fresh.
		_ = removeTree(g.Kill)
		for _, d := range []string{"shim", "ranks"} {
			if err := mkdirs(filepath.Join(g.Kill, d)); err != nil {
				fallbacks = append(fallbacks, fmt.Sprintf("no cgroup.kill: %v", err))
				g.Kill = ""
				break
			}
		}
	}
	if c.MemoryRoot == "" || memory <= 0 {
		if memory > 0 {
			fallbacks = append(fallbacks, "no memory controller: the limit is watched by polling ("+strings.Join(c.Why, "; ")+")")
		}
		return g, fallbacks
	}
	g.Memory, g.MemoryV2 = filepath.Join(c.MemoryRoot, groupDir, alloc), c.MemoryV2
	if err := g.limit(memory); err != nil {
		fallbacks = append(fallbacks, fmt.Sprintf("no memory controller: the limit is watched by polling (%v)", err))
		g.Memory, g.MemoryV2 = "", false
	}
	return g, fallbacks
}

func (g Groups) limit(memory unit.Bytes) error {
	ranks := filepath.Join(g.Memory, "ranks")
	if err := mkdirs(ranks); err != nil {
		return err
	}
	n := strconv.FormatInt(int64(memory), 10)
	if !g.MemoryV2 {
		if err := writeFile(filepath.Join(ranks, "memory.limit_in_bytes"), n); err != nil {
			return err
		}
		// Without swap accounting there is no such file; then swap is not bounded.
		if err := writeFile(filepath.Join(ranks, "memory.memsw.limit_in_bytes"), n); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	for _, d := range []string{filepath.Dir(g.Memory), g.Memory, ranks} {
		if err := writeFile(filepath.Join(d, "cgroup.subtree_control"), "+memory"); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(ranks, "memory.max"), n); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(ranks, "memory.swap.max"), "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// ShimDir is the cgroup2 group of the shim, "" without one.
func (g Groups) ShimDir() string { return g.sub(g.Kill, "shim") }

func (g Groups) sub(base string, parts ...string) string {
	if base == "" {
		return ""
	}
	return filepath.Join(append([]string{base}, parts...)...)
}

// WarmDirs are the groups of the forkserver, as RankDirs names those of a rank. Nothing
// limits them: what ranks share with it was charged to it first.
func (g Groups) WarmDirs() (kill, tasks string) {
	if g.Memory != "" && !g.MemoryV2 {
		dir := filepath.Join(g.Memory, "warm")
		if mkdirs(dir) == nil {
			tasks = filepath.Join(dir, "tasks")
		}
	}
	if kill = g.sub(g.Kill, "warm"); kill != "" && mkdirs(kill) != nil {
		kill = "" // no group is better than none to start in
	}
	return kill, tasks
}

// RankDirs makes the groups of one local rank. kill is the cgroup2 group that the
// rank is cloned into; tasks is the v1 file that it writes "0" to; each "" when
// there is none.
func (g Groups) RankDirs(local int64) (kill, tasks string, err error) {
	r := strconv.FormatInt(local, 10)
	if g.Kill != "" {
		kill = filepath.Join(g.Kill, "ranks", r)
		if err := mkdirs(kill); err != nil {
			return "", "", fmt.Errorf("make the cgroup of local rank %d: %w", local, err)
		}
		if g.Memory == g.Kill && g.MemoryV2 {
			// The rank dies whole: half a rank hangs its peers.
			_ = writeFile(filepath.Join(kill, "memory.oom.group"), "1")
		}
	}
	if g.Memory != "" && !g.MemoryV2 {
		dir := filepath.Join(g.Memory, "ranks", r)
		if err := mkdirs(dir); err != nil {
			return "", "", fmt.Errorf("make the memory cgroup of local rank %d: %w", local, err)
		}
		tasks = filepath.Join(dir, "tasks")
	}
	return kill, tasks, nil
}

// Fresh removes the empty groups of ranks, so that the next attempt gets new ones. A
// group that was killed once counts its kills, and kernels (seen: 6.18) compare that
// count with the one of the parent's group when a process is cloned into a group: the
// child dies at birth. A new group has not been killed.
func (g Groups) Fresh() {
	if g.Kill == "" {
		return
	}
	ents, err := os.ReadDir(filepath.Join(g.Kill, "ranks"))
	if err != nil {
		return
	}
	for _, e := range ents {
		if e.IsDir() {
			_ = removeTree(filepath.Join(g.Kill, "ranks", e.Name()))
		}
	}
}

// Born waits until a child that was just forked runs the program whose first
// argument is argv0, and reports false if it died before: see Fresh for how.
func Born(pid int, argv0 string) bool {
	path := "/proc/" + strconv.Itoa(pid)
	var buf [256]byte
	for range 2000 {
		n, err := readSmall(path+"/cmdline", buf[:])
		if err == nil && strings.HasPrefix(string(buf[:n]), argv0+"\x00") {
			return true
		}
		p, err := ReadProc(pid)
		if err != nil || p.Dead() {
			return false
		}
		time.Sleep(500 * time.Microsecond)
	}
	return true // alive, whatever it calls itself
}

// OOMKills counts how often the kernel has killed a process of the local rank
// because of its memory limit. Compare with an earlier value.
func (g Groups) OOMKills(local int64) int64 {
	if g.Memory == "" {
		return 0
	}
	file := "memory.events"
	if !g.MemoryV2 {
		file = "memory.oom_control"
	}
	return counter(filepath.Join(g.Memory, "ranks", strconv.FormatInt(local, 10), file), "oom_kill")
}

// counter reads "name value" out of a flat keyed file, 0 when it is not there.
func counter(path, name string) int64 {
	n, _ := readCounter(path, name)
	return n
}

func readCounter(path, name string) (int64, error) {
	var buf [1024]byte
	n, err := readSmall(path, buf[:])
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(buf[:n]) {
		k, v, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if ok && k == name {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, nil
}

// KillRanks sends SIGKILL to every process of the ranks at once, also to those
// being forked now.
func (g Groups) KillRanks() error { return g.killAt("ranks") }

// KillAll does the same for the whole allocation, its shim and saver included.
func (g Groups) KillAll() error { return g.killAt("") }

func (g Groups) killAt(part string) error {
	if g.Kill == "" {
		return nil
	}
	err := writeFile(filepath.Join(g.Kill, part, "cgroup.kill"), "1")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // the group is gone and so is what was in it
	}
	return err
}

// populated reports whether a live process is in the group or below; a group that
// does not exist holds none.
func populated(dir string) (bool, error) {
	n, err := readCounter(filepath.Join(dir, "cgroup.events"), "populated")
	if err != nil && !noGroup(err) {
		return false, fmt.Errorf("look into cgroup %s: %w", dir, err)
	}
	return n > 0, nil
}

// noGroup reports whether an error means that there is no such group (any more).
func noGroup(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

// members lists the processes of the groups below base, however deep.
func members(base string) ([]int, error) {
	if base == "" {
		return nil, nil
	}
	var list []int
	b, err := os.ReadFile(filepath.Join(base, "cgroup.procs"))
	if noGroup(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the processes of a cgroup: %w", err)
	}
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			list = append(list, pid)
		}
	}
	ents, err := os.ReadDir(base)
	if noGroup(err) {
		return list, nil
	}
	if err != nil {
		return list, fmt.Errorf("list the processes of a cgroup: %w", err)
	}
	for _, e := range ents {
		if e.IsDir() {
			below, err := members(filepath.Join(base, e.Name()))
			list = append(list, below...)
			if err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

// Remove removes the groups, deepest first, for at most wait: a dead process leaves
// its group only after the kernel has finished with it. A shim calls it for its
// ranks and cannot remove the group that it stands in; keepShim says so.
func (g Groups) Remove(wait time.Duration, keepShim bool) error {
	deadline := time.Now().Add(wait)
	for {
		err := errors.Join(g.removeOnce(g.Kill, keepShim), g.removeOnce(g.Memory, keepShim))
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond) // the kernel offers nothing to wait on here
	}
}

func (g Groups) removeOnce(base string, keepShim bool) error {
	if base == "" {
		return nil
	}
	if keepShim {
		return errors.Join(removeTree(filepath.Join(base, "ranks")), removeTree(filepath.Join(base, "warm")))
	}
	if err := removeTree(base); err != nil {
		return err
	}
	os.Remove(filepath.Dir(base)) // the last allocation takes the common group along
	return nil
}

func removeTree(dir string) error {
	if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
		return nil // most have none below them
	}
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range ents {
		if e.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, &os.PathError{Op: "remove", Path: dir, Err: err})
	}
	return errors.Join(errs...)
}

// plainName accepts names that are one path element and cannot leave it.
func plainName(s string) bool {
	if s == "" || len(s) > 200 || s[0] == '.' {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// JoinShim moves the calling process into the shim's group unless it is there
// already, as one that Launch started is.
func (g Groups) JoinShim() error {
	dir := g.ShimDir()
	if dir == "" {
		return nil
	}
	there, _ := members(dir)
	if slices.Contains(there, os.Getpid()) {
		return nil
	}
	return writeFile(filepath.Join(dir, "cgroup.procs"), "0")
}

// Leave moves the calling process back to the group in which all groups of Troupe
// were made, so that those of the allocation can be removed.
func (g Groups) Leave() error {
	if g.Kill == "" {
		return nil
	}
	return writeFile(filepath.Join(filepath.Dir(filepath.Dir(g.Kill)), "cgroup.procs"), "0")
}
