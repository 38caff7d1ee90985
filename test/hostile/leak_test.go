package hostile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// footprint is what a cluster costs at rest.
type footprint struct {
	rss             int64 // KiB
	fds, threads    int
	files, groups   int
	nodeState, logs int64 // bytes
}

func (f footprint) String() string {
	return fmt.Sprintf("%d KiB, %d descriptors, %d threads, %d files of %d KiB for the node, %d cgroups, log of %d KiB",
		f.rss, f.fds, f.threads, f.files, f.nodeState>>10, f.groups, f.logs>>10)
}

func (c *cluster) footprint() (f footprint) {
	c.t.Helper()
	pid := c.daemons["up"].cmd.Process.Pid
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			v = strings.TrimSuffix(strings.TrimSpace(v), " kB")
			switch n, _ := strconv.ParseInt(v, 10, 64); k {
			case "VmRSS":
				f.rss = n
			case "Threads":
				f.threads = int(n)
			}
		}
	}
	if l, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		f.fds = len(l)
	}
	_ = filepath.WalkDir(filepath.Join(c.state, "node"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			f.files++
			if i, err := d.Info(); err == nil && d.Type().IsRegular() {
				f.nodeState += i.Size()
			}
		}
		return nil
	})
	if i, err := os.Stat(c.daemons["up"].log); err == nil {
		f.logs = i.Size()
	}
	f.groups = len(cgroupsOf(func(name string) bool { return strings.HasPrefix(name, "leak-") }))
	return f
}

// TestNothingGrows: hundreds of jobs later a cluster costs what it cost before; what it
// keeps of them is bounded.
func TestNothingGrows(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	c := start(t, options{})
	run := func(n int) footprint {
		t.Helper()
		for range n {
			r := c.trySubmit(spec("leak", 2, "true"), "--wait")
			if r.code != 0 {
				t.Fatalf("%s", r)
			}
		}
		c.idle()
		return c.footprint()
	}
	// The first jobs fill what is bounded: 200 old allocations and a few more, pools, caches.
	before := run(230)
	after := run(300)
	t.Logf("after 230 jobs: %s", before)
	t.Logf("after 530 jobs: %s", after)
	if after.fds > before.fds+5 || after.threads > before.threads+8 || after.groups > 0 {
		t.Errorf("descriptors, threads or cgroups grow: %s, then %s", before, after)
	}
	if after.files > before.files+before.files/10+10 {
		t.Errorf("files of the node grow: %d, then %d", before.files, after.files)
	}
	// What the log and the state keep of a job is some kilobytes.
	if grown := after.rss - before.rss; grown > 300*40 {
		t.Errorf("memory grows by %d KiB with 300 jobs", grown)
	}
	old, err := os.ReadDir(filepath.Join(c.state, "node", "alloc"))
	if err != nil || len(old) > 200+200/8+5 { // old ones are looked for now and then
		t.Errorf("%d old allocations are kept: %v", len(old), err)
	}
	// The newest job's output is among what is kept.
	l := get[api.List[api.Job]](c, "job", "list")
	if r := c.troupe("logs", l.Items[0].ID); r.code != 0 {
		t.Errorf("%s", r)
	}
	used, idle := c.goroutines(), start(t, options{}).goroutines()
	t.Logf("%d goroutines, %d in a new cluster", used, idle)
	if used > idle+20 {
		t.Errorf("goroutines grow: %d, %d in a new cluster; the dump is in the log", used, idle)
	}
}

var goroutineLine = regexp.MustCompile(`(?m)^goroutine \d+ `)

// goroutines counts them in the dump that SIGQUIT makes, which ends the cluster.
func (c *cluster) goroutines() int {
	c.t.Helper()
	d := c.daemons["up"]
	_ = d.cmd.Process.Signal(syscall.SIGQUIT)
	d.wait(c.t, patience)
	b, err := os.ReadFile(d.log)
	if err != nil {
		c.t.Fatal(err)
	}
	_, dump, _ := strings.Cut(string(b), "SIGQUIT")
	return len(goroutineLine.FindAllString(dump, -1))
}
