package gang

import (
	"fmt"
	"sort"
	"testing"
)

func TestNaturalOrder(t *testing.T) {
	want := []string{"a", "a1", "a2", "a10", "a10b", "b", "gpu-2-1", "gpu-2-10", "gpu-10-1", "n007", "n8"}
	got := []string{"n8", "gpu-10-1", "a10b", "b", "gpu-2-10", "a2", "n007", "a10", "a", "gpu-2-1", "a1"}
	sort.Slice(got, func(i, j int) bool { return NaturalLess(got[i], got[j]) })
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, a := range want {
		if NaturalLess(a, a) {
			t.Errorf("%s is before itself", a)
		}
	}
}
