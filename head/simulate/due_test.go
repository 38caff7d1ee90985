package simulate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// usual is what the figures assume: 1.8 times as fast with twice the devices, up to four
// times what was asked for, and half a minute for each change.
var usual = DueOptions{Speedup: 1.8, Doublings: 2, Change: 30 * time.Second}

func due(t *testing.T, rows string) *Trace {
	t.Helper()
	return read(t, "due.csv", strings.NewReader("submit,duration,gpus,deadline\n"+rows), ReadOptions{})
}

func TestDue(t *testing.T) {
	// The second job cannot meet its deadline as it is, and can with twice the devices.
	tr := due(t, "0,1000,4,1200\n0,1000,4,700\n")
	fixed, err := Due(t.Context(), DueFixed, tr, 12_000, usual, nil)
	if err != nil {
		t.Fatal(err)
	}
	elastic, err := Due(t.Context(), DueElastic, tr, 12_000, usual, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, e := NewReport(tr, fixed, "", 0, 12), NewReport(tr, elastic, "", 0, 12)
	if f.Missed != 1 || e.Missed != 0 || f.Finished != 2 || e.Finished != 2 {
		t.Errorf("fixed sizes miss %d, chosen ones %d", f.Missed, e.Missed)
	}
	if got, want := fixed.Jobs[0].Ended, 1030*time.Second; got != want {
		t.Errorf("a job of 1000 s that takes 30 s to start ends at %s", got)
	}
	if got, want := elastic.Jobs[1].Ended.Round(time.Second), 586*time.Second; got != want { // 30 + 1000 / 1.8
		t.Errorf("with twice the devices it ends at %s, want %s", got, want)
	}
	for _, bad := range []DueOptions{{Speedup: 1}, {Speedup: 1.8, Doublings: -1}, {Speedup: 1.8, Change: -1}} {
		if _, err := Due(t.Context(), DueElastic, tr, 12_000, bad, nil); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if _, err := Due(t.Context(), "late", tr, 12_000, usual, nil); err == nil {
		t.Error("an unknown rule was taken")
	}
}

// On the public trace with deadlines, sizes that are chosen meet at least ten points more.
func TestDeadlinesMet(t *testing.T) {
	path := filepath.Join(os.Getenv("TROUPE_TRACES"), "elasticflow_philly_103959.csv")
	f, err := os.Open(path)
	if os.Getenv("TROUPE_TRACES") == "" || err != nil {
		t.Skip("no folder of public traces in TROUPE_TRACES")
	}
	defer f.Close()
	tr := read(t, "elasticflow.csv", f, ReadOptions{})
	met := map[string]float64{}
	for _, rule := range []string{DueFixed, DueElastic} {
		r, err := Due(t.Context(), rule, tr, 128_000, usual, nil)
		if err != nil {
			t.Fatal(err)
		}
		rep := NewReport(tr, r, rule, 0, 128)
		met[rule] = 100 * float64(rep.Deadlines-rep.Missed) / float64(rep.Deadlines)
	}
	t.Logf("deadlines met: %.1f %% with sizes as asked for, %.1f %% with sizes chosen", met[DueFixed], met[DueElastic])
	if met[DueElastic] < met[DueFixed]+10 {
		t.Errorf("%.1f %%, less than ten points above %.1f %%", met[DueElastic], met[DueFixed])
	}
}
