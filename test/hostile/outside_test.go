package hostile

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// proc is one living process as /proc shows it; a zombie is not alive (P6).
type proc struct {
	pid  int
	cmd  string
	env  map[string]string
	exe  string
	stat string
}

func (p proc) String() string { return fmt.Sprintf("%d %s", p.pid, p.cmd) }

func processes() []proc {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var list []proc
	for _, dir := range names {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		st, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		_, after, _ := bytes.Cut(st, []byte(") "))
		if len(after) == 0 || after[0] == 'Z' || after[0] == 'X' {
			continue
		}
		p := proc{pid: pid, env: map[string]string{}, stat: string(after[:1])}
		if b, err := os.ReadFile(dir + "/environ"); err == nil {
			for kv := range strings.SplitSeq(string(b), "\x00") {
				if k, v, ok := strings.Cut(kv, "="); ok {
					p.env[k] = v
				}
			}
		}
		if b, err := os.ReadFile(dir + "/cmdline"); err == nil {
			p.cmd = strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
		}
		p.exe, _ = os.Readlink(dir + "/exe")
		list = append(list, p)
	}
	return list
}

// ofJob is what lives of a job: by its mark in the environment.
func ofJob(id string) []proc {
	var list []proc
	for _, p := range processes() {
		if p.env["TROUPE_JOB"] == id {
			list = append(list, p)
		}
	}
	return list
}

// strays is what lives of this cluster's programs, whatever their environment.
func (c *cluster) strays() []proc {
	var list []proc
	for _, p := range processes() {
		if strings.HasPrefix(p.exe, c.dir+"/") && !strings.Contains(p.exe, "/bin/troupe-shim") {
			list = append(list, p)
		}
	}
	return list
}

// shims are the living shims of this cluster.
func (c *cluster) shims() []proc {
	var list []proc
	for _, p := range processes() {
		if strings.Contains(p.cmd, c.state+"/") && strings.Contains(p.cmd, "shim.json") {
			list = append(list, p)
		}
	}
	return list
}

// ranks are the main processes of a job's ranks, by rank.
func ranksOf(id string) map[string]int {
	m := map[string]int{}
	for _, p := range ofJob(id) {
		if r, ok := p.env["RANK"]; ok {
			if old, ok := m[r]; !ok || p.pid < old {
				m[r] = p.pid
			}
		}
	}
	return m
}

// cgroups are the control groups of a job that exist.
func cgroups(id string) []string {
	return cgroupsOf(func(name string) bool { return strings.HasPrefix(name, id+".") })
}

func cgroupsOf(match func(name string) bool) []string {
	var list []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if match(d.Name()) && filepath.Base(filepath.Dir(path)) == "troupe" {
			list = append(list, path)
			return fs.SkipDir
		}
		return nil
	})
	return list
}

// clean waits until nothing of a job is left: no process, no hold, no group.
func (c *cluster) clean(id string) {
	c.t.Helper()
	awaitFor(c.t, "nothing is left of "+id, goneLimit, func() (string, bool) {
		if l := ofJob(id); len(l) > 0 {
			return fmt.Sprint("processes: ", l), false
		}
		if g := cgroups(id); len(g) > 0 {
			return fmt.Sprint("cgroups: ", g), false
		}
		for _, g := range get[api.List[api.Group]](c, "pg", "list").Items {
			if g.Job == id {
				return fmt.Sprintf("group %s %s", g.ID, g.State), false
			}
		}
		return "", true
	})
}

// idle waits until nothing at all is left in the cluster.
func (c *cluster) idle() {
	c.t.Helper()
	awaitFor(c.t, "the cluster is idle", goneLimit, func() (string, bool) {
		if l := c.strays(); len(l) > 0 {
			return fmt.Sprint("processes: ", l), false
		}
		if l := c.shims(); len(l) > 0 {
			return fmt.Sprint("shims: ", l), false
		}
		n := c.node()
		if n.Allocated != (api.Resources{}) {
			return fmt.Sprintf("allocated: %+v", n.Allocated), false
		}
		for _, g := range n.GPUs {
			if g.Owner != "" {
				return fmt.Sprintf("gpu %d of %s", g.Index, g.Owner), false
			}
		}
		return "", true
	})
}
