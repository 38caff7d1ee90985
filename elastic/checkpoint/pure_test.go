package checkpoint

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

func TestStepNameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := StepName{
			Step:       rapid.Int64Range(0, math.MaxInt64).Draw(t, "step"),
			Generation: rapid.Uint64().Draw(t, "generation"),
			Life:       rapid.StringMatching("[0-9a-f]{8}").Draw(t, "life"),
		}
		got, err := ParseStepName(n.String())
		if err != nil || got != n {
			t.Fatalf("%s parses to %+v, %v", n, got, err)
		}
	})
}

func TestParseStepNameRefuses(t *testing.T) {
	for _, s := range []string{
		"", "step-1", "step-1-g1", "step-1-g1-0a1b2c3", "step-1-g1-0a1b2c3dd", "step-1-g1-0A1B2C3D", "step-01-g1-0a1b2c3d",
		"step-1-g01-0a1b2c3d", "step--1-g1-0a1b2c3d", "step-+1-g1-0a1b2c3d", "step-1-1-0a1b2c3d", "step-9223372036854775808-g1-0a1b2c3d",
		"step-1-g18446744073709551616-0a1b2c3d", " step-1-g1-0a1b2c3d", "step-1-g1-0a1b2c3d/", "step-1-g1-0a1b2c3d-x", "step-" + strings.Repeat("1", 1<<16),
	} {
		if n, err := ParseStepName(s); !errors.Is(err, ErrName) {
			t.Errorf("ParseStepName(%.60q) = %+v, %v", s, n, err)
		}
	}
}

func TestValidRun(t *testing.T) {
	for _, s := range []string{"a", "digits", "Run.1_x-2", strings.Repeat("a", 63)} {
		if err := ValidRun(s); err != nil {
			t.Errorf("ValidRun(%q): %v", s, err)
		}
	}
	for _, s := range []string{"", ".", "..", ".hidden", "-x", "a/b", "a b", "ä", "a\x00", "a\\b", strings.Repeat("a", 64)} {
		if err := ValidRun(s); !errors.Is(err, ErrName) {
			t.Errorf("ValidRun(%q): %v", s, err)
		}
	}
}

func TestValidDir(t *testing.T) {
	good := StepDir("/s", "r", StepName{1, 2, "0a1b2c3d"})
	if n, err := ValidDir("/s", "r", good); err != nil || n != (StepName{1, 2, "0a1b2c3d"}) {
		t.Errorf("ValidDir = %+v, %v", n, err)
	}
	for _, c := range [][3]string{
		{"/s", "r", "/s/r/../r/step-1-g2-0a1b2c3d"},
		{"/s", "r", "/s/x/step-1-g2-0a1b2c3d"},
		{"/s", "r", "/s/r"},
		{"/s", "r", "/s"},
		{"/s", "r", "/"},
		{"/s", "r", ""},
		{"s", "r", "s/r/step-1-g2-0a1b2c3d"},
		{"/", "r", "/r/step-1-g2-0a1b2c3d"},
		{"/s/", "r", good},
		{"/s", "..", "/step-1-g2-0a1b2c3d"},
		{"/s", "r", good + "/rank-0"},
		{"/s", "r", good + "/"},
	} {
		if _, err := ValidDir(c[0], c[1], c[2]); !errors.Is(err, ErrName) {
			t.Errorf("ValidDir(%q): %v", c, err)
		}
	}
}

func TestShouldCheckpoint(t *testing.T) {
	var got []int64
	for s := int64(-5); s <= 12; s++ {
		if ShouldCheckpoint(s, 5) {
			got = append(got, s)
		}
		if ShouldCheckpoint(s, 0) || ShouldCheckpoint(s, -5) {
			t.Errorf("step %d: a script that decides was overruled", s)
		}
	}
	if !slices.Equal(got, []int64{5, 10}) {
		t.Errorf("every 5 steps saves at %v", got)
	}
}

func TestNewest(t *testing.T) {
	back, gone := record(40, 2), record(50, 2)
	back.RolledBack, gone.Tombstoned = true, true
	all := []Record{record(10, 1), record(30, 1), back, gone, record(20, 2)}
	for _, c := range []struct {
		ceiling int64
		want    StepName
		ok      bool
	}{
		// Generation 2 began after a roll-back to 10, so its step 20 is newer than 30.
		{NoCeiling, record(20, 2).StepName, true},
		{20, record(20, 2).StepName, true},
		{19, record(10, 1).StepName, true},
		{9, StepName{}, false},
	} {
		if got, ok := Newest(all, c.ceiling); ok != c.ok || got.StepName != c.want {
			t.Errorf("Newest(≤ %d) = %v, %v; want %v", c.ceiling, got.StepName, ok, c.want)
		}
	}
	if _, ok := Newest(nil, NoCeiling); ok {
		t.Error("something out of nothing")
	}
}

func TestExpired(t *testing.T) {
	pinned, fork, newFork, gone := record(5, 1), record(15, 1), record(70, 1), record(1, 1)
	pinned.Pinned, fork.RolledBack, newFork.RolledBack, gone.Tombstoned = true, true, true, true
	all := []Record{record(60, 1), record(20, 1), gone, record(10, 1), pinned, newFork, fork, record(50, 1), record(30, 1)}
	var got []int64
	for _, r := range Expired(all, Policy{Last: 2}, []StepName{record(20, 1).StepName}) {
		got = append(got, r.Step)
	}
	if !slices.Equal(got, []int64{10, 30}) {
		t.Errorf("Expired = %v", got)
	}
	if got := Expired([]Record{fork, newFork}, Policy{Last: 1}, nil); len(got) != 0 {
		t.Errorf("only forks are left, yet %v expire", got)
	}
}

// TestRules: what any rule of a policy keeps stays.
func TestRules(t *testing.T) {
	loss := func(step int64, value float64) Record {
		r := record(step, 1)
		r.Metrics = []wire.Metric{{Name: "acc", Value: -value}, {Name: "loss", Value: value}}
		return r
	}
	all := []Record{loss(10, 0.9), loss(20, 0.2), loss(30, 0.5), record(40, 1), loss(50, 0.2), loss(60, 0.7), loss(70, 0.8)}
	for _, c := range []struct {
		name string
		p    Policy
		left []int64
	}{
		{"last", Policy{Last: 2}, []int64{60, 70}},
		{"last of nothing is the newest", Policy{}, []int64{70}},
		{"more than there are", Policy{Last: 100}, []int64{10, 20, 30, 40, 50, 60, 70}},
		{"every", Policy{Last: 1, Every: 20}, []int64{20, 40, 60, 70}},
		{"best of equals is the newer", Policy{Last: 1, Best: &Best{"loss", false, 1}}, []int64{50, 70}},
		{"best two", Policy{Last: 1, Best: &Best{"loss", false, 2}}, []int64{20, 50, 70}},
		{"highest", Policy{Last: 1, Best: &Best{"loss", true, 2}}, []int64{10, 70}},
		{"highest of the other", Policy{Last: 1, Best: &Best{"acc", true, 1}}, []int64{50, 70}},
		{"nobody has it", Policy{Last: 1, Best: &Best{"f1", true, 5}}, []int64{70}},
		{"all together", Policy{Last: 2, Every: 30, Best: &Best{"loss", true, 1}}, []int64{10, 30, 60, 70}},
	} {
		gone := map[int64]bool{}
		for _, r := range Expired(all, c.p, nil) {
			gone[r.Step] = true
		}
		var left []int64
		for _, r := range all {
			if !gone[r.Step] {
				left = append(left, r.Step)
			}
		}
		if !slices.Equal(left, c.left) {
			t.Errorf("%s: %v stay, want %v", c.name, left, c.left)
		}
	}
}

// I20: never the newest, a pinned one or one that is being restored; at least keep stand.
func TestI20RetentionKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Record
		for s := range rapid.Int64Range(0, 12).Draw(t, "steps") {
			r := record(s, rapid.Uint64Range(1, 3).Draw(t, "generation"))
			r.RolledBack = rapid.IntRange(0, 3).Draw(t, "back") == 0
			r.Tombstoned = rapid.IntRange(0, 3).Draw(t, "gone") == 0
			r.Pinned = rapid.IntRange(0, 3).Draw(t, "pin") == 0
			all = append(all, r)
		}
		keep := rapid.IntRange(-1, 5).Draw(t, "keep")
		var restoring []StepName
		if len(all) > 0 {
			restoring = append(restoring, all[rapid.IntRange(0, len(all)-1).Draw(t, "restoring")].StepName)
		}
		policy := Policy{Last: keep, Every: rapid.Int64Range(0, 4).Draw(t, "every")}
		expired := Expired(all, policy, restoring)
		gone := map[StepName]bool{}
		for i, r := range expired {
			if r.Pinned || r.Tombstoned || slices.Contains(restoring, r.StepName) {
				t.Fatalf("%v expires", r)
			}
			if i > 0 && compareRecords(expired[i-1], r) >= 0 {
				t.Fatalf("not oldest first: %v", expired)
			}
			gone[r.StepName] = true
		}
		standing, left := 0, 0
		for _, r := range all {
			if !r.RolledBack && !r.Tombstoned {
				standing++
				if !gone[r.StepName] {
					left++
				}
			}
		}
		if left < min(standing, max(keep, 1)) {
			t.Fatalf("%d of %d stand after retention of %d", left, standing, keep)
		}
		if n, ok := Newest(all, NoCeiling); ok && gone[n.StepName] {
			t.Fatalf("the newest, %v, expires", n)
		}
	})
}
