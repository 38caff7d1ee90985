package process

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// The groups are made where it was said before that they would be: whoever finds only the
// plan sweeps the right ones, and finds nothing to do where none was made.
func TestPlannedGroups(t *testing.T) {
	c := Probe()
	name := fmt.Sprintf("test-planned-%d", os.Getpid())
	planned := PlannedGroups(c, name, 1<<30)
	res := Sweep(t.Context(), Target{Cookie: name, Whole: true, Groups: planned})
	if !res.Clean() || planned.Remove(time.Second, false) != nil {
		t.Fatalf("groups that were never made: %v", res.Error())
	}
	made, fallbacks := NewGroups(c, name, 1<<30)
	defer func() { _ = made.Remove(time.Second, false) }()
	if len(fallbacks) == 0 && made != planned {
		t.Errorf("planned %+v, made %+v", planned, made)
	}
	if err := planned.Remove(time.Second, false); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{made.Kill, made.Memory} {
		if _, err := os.Stat(dir); dir != "" && err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	if bad := PlannedGroups(c, "../up", 0); bad != (Groups{}) {
		t.Errorf("%+v", bad)
	}
}
