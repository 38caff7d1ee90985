package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FallbackEnv is a debugging switch: set to "fallback" it makes the node behave as
// one without any writable cgroup, so that this path is tested where cgroups work.
const FallbackEnv = "TROUPE_CONTAINMENT"

// Capabilities are the two independent answers of the probe: where a group can be
// killed as a whole, and where memory can be limited. Either may be missing.
type Capabilities struct {
	KillRoot   string // directory of a cgroup2 mount below which groups may be made; "" none
	MemoryRoot string // directory of the hierarchy with the memory controller; "" none
	MemoryV2   bool   // MemoryRoot is cgroup2
	// Why says, one sentence each, what is missing and why.
	Why []string
}

// Probe looks at the mounts of this process and tries each ability on an empty
// group. Groups are made below the group the process is in, so that limits which
// the machine's owner has set on it hold for its ranks too.
func Probe() Capabilities {
	if os.Getenv(FallbackEnv) == "fallback" {
		return Capabilities{Why: []string{FallbackEnv + "=fallback: cgroups are left unused on purpose"}}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Capabilities{Why: []string{fmt.Sprintf("cgroups: %v", err)}}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Capabilities{Why: []string{fmt.Sprintf("cgroups: %v", err)}}
	}
	v2, v1 := cgroupBases(mounts, own)
	return probe(v2, v1)
}

func probe(v2 []string, v1 string) Capabilities {
	var c Capabilities
	for _, base := range v2 {
		if err := tryKill(base); err != nil {
			c.Why = append(c.Why, fmt.Sprintf("cgroup.kill in %s: %v", base, err))
			continue
		}
		c.KillRoot = base
		break
	}
	if len(v2) == 0 {
		c.Why = append(c.Why, "no cgroup2 mount")
	}
	if c.KillRoot != "" {
		err := tryMemoryV2(c.KillRoot)
		if err == nil {
			c.MemoryRoot, c.MemoryV2 = c.KillRoot, true
			return c
		}
		c.Why = append(c.Why, fmt.Sprintf("memory controller in %s: %v", c.KillRoot, err))
	}
	if v1 == "" {
		c.Why = append(c.Why, "no cgroup v1 memory mount")
		return c
	}
	if err := tryMemoryV1(v1); err != nil {
		c.Why = append(c.Why, fmt.Sprintf("memory controller in %s: %v", v1, err))
		return c
	}
	c.MemoryRoot = v1
	return c
}

// cgroupBases finds, for each cgroup2 mount and for the v1 memory mount, the
// directory that is this process's own group as seen through the mount.
func cgroupBases(mountinfo, self []byte) (v2 []string, v1 string) {
	own := map[string]string{} // controllers → path
	for line := range strings.Lines(string(self)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 {
			for name := range strings.SplitSeq(f[1], ",") {
				own[name] = f[2]
			}
		}
	}
	sc := bufio.NewScanner(bytes.NewReader(mountinfo))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		root, point := l[3], unescape(l[4])
		switch {
		case r[0] == "cgroup2":
			if path, ok := own[""]; ok {
				v2 = append(v2, baseIn(root, point, path))
			}
		case r[0] == "cgroup" && hasWord(r[2], "memory"):
			if path, ok := own["memory"]; ok && v1 == "" {
				v1 = baseIn(root, point, path)
			}
		}
	}
	return v2, v1
}

// baseIn translates a group's path into one below the mount point. A container
// without its own cgroup namespace sees paths that its mount does not show: then
// the mount itself is the group.
func baseIn(root, point, path string) string {
	rel, err := filepath.Rel(root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return point
	}
	dir := filepath.Join(point, rel)
	if _, err := os.Stat(dir); err != nil {
		return point
	}
	return dir
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// unescape undoes the octal escapes of mountinfo for the characters it uses them for.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

var probes atomic.Int64

func probeDir(base string) (dir string, done func(), err error) {
	dir = filepath.Join(base, groupDir, fmt.Sprintf("probe-%d-%d", os.Getpid(), probes.Add(1)))
	if err := mkdirs(dir); err != nil {
		return "", nil, err
	}
	return dir, func() {
		os.Remove(dir)
		os.Remove(filepath.Dir(dir)) // only when it is empty
	}, nil
}

func tryKill(base string) error {
	// A process moves only if the common ancestor lets it: that is base.
	if err := unix.Access(filepath.Join(base, "cgroup.procs"), unix.W_OK); err != nil {
		return fmt.Errorf("cannot move processes: %w", err)
	}
	dir, done, err := probeDir(base)
	if err != nil {
		return err
	}
	defer done()
	if err := writeFile(filepath.Join(dir, "cgroup.kill"), "1"); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return errors.New("kernel older than 5.14")
		}
		return err
	}
	if t, err := os.ReadFile(filepath.Join(dir, "cgroup.type")); err == nil && strings.TrimSpace(string(t)) != "domain" {
		return fmt.Errorf("groups are of type %s", strings.TrimSpace(string(t)))
	}
	return nil
}

func tryMemoryV2(base string) error {
	b, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return err
	}
	if !hasWord(strings.Join(strings.Fields(string(b)), ","), "memory") {
		return errors.New("not in cgroup.controllers")
	}
	dir, done, err := probeDir(base)
	if err != nil {
		return err
	}
	defer done()
	for _, d := range []string{base, filepath.Dir(dir)} {
		if err := writeFile(filepath.Join(d, "cgroup.subtree_control"), "+memory"); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(dir, "memory.max"), "max")
}

func tryMemoryV1(base string) error {
	dir, done, err := probeDir(base)
	if err != nil {
		return err
	}
	defer done()
	return writeFile(filepath.Join(dir, "memory.limit_in_bytes"), "1073741824")
}

// writeFile writes one value in one call, as control files want it, and never
// creates.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// mkdirs makes a group and its parents. A neighbour that removes an empty parent at
// the same moment makes it fail once, so it tries again.
func mkdirs(dir string) error {
	var err error
	for range 5 {
		if err = os.MkdirAll(dir, 0o755); !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return err
}
