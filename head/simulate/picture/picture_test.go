package picture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/simulate"
)

func TestWrite(t *testing.T) {
	job := &simulate.Job{Name: "a", Takes: time.Hour}
	long := &simulate.Result{Ended: 3 * time.Hour, Jobs: []simulate.Outcome{
		{Job: job, Ran: true, Done: true, Started: time.Minute, Ended: time.Hour, Busy: 1},
		{Job: job, Ran: true, Started: time.Hour},
		{Job: job},
	}}
	for i := range mostPoints + 10 {
		long.Samples = append(long.Samples, simulate.Sample{At: time.Duration(i) * time.Second, There: 8000, Used: int64(i%9) * 1000})
	}
	for name, r := range map[string]*simulate.Result{"long": long, "empty": {}} {
		for kind, magic := range map[string]string{"svg": "<svg", "png": "\x89PNG"} {
			dir := filepath.Join(t.TempDir(), name)
			paths, err := Write(dir, kind, r)
			if err != nil || len(paths) != 2 {
				t.Fatalf("%s %s: %v, %v", name, kind, paths, err)
			}
			for _, p := range paths {
				data, err := os.ReadFile(p)
				if err != nil || !bytes.Contains(data, []byte(magic)) {
					t.Errorf("%s is no %s: %v", p, kind, err)
				}
			}
		}
	}
	if got := thin(long.Samples, func(s simulate.Sample) int64 { return s.There }); len(got) > mostPoints+1 || got[0].Y != 8 {
		t.Errorf("%d points, the first at %v", len(got), got[0])
	}
	if _, err := Write(t.TempDir(), "tiff2", long); err == nil {
		t.Error("an unknown kind was written")
	}
}
