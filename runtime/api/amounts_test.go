package api

import (
	"encoding/json"
	"testing"
)

func TestAmounts(t *testing.T) {
	var a Amounts
	if err := json.Unmarshal([]byte(`{"gpu":8000,"cpu":4,"gpu:H200":-1}`), &a); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]int64{"gpu": 8000, "cpu": 4, "gpu:H200": -1} {
		if n, ok := a.Get(of); !ok || n != want {
			t.Errorf("%s: %d, %v", of, n, ok)
		}
	}
	if _, ok := a.Get("memory"); ok {
		t.Error("found what is not there")
	}
	got, err := json.Marshal(a.With("memory", 5).With("cpu", 6))
	if want := `{"cpu":6,"gpu":8000,"gpu:H200":-1,"memory":5}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	if n, _ := a.Get("cpu"); n != 4 {
		t.Errorf("With changed what it was called on: %d", n)
	}
	for _, bad := range []string{`[]`, `{"gpu":1.5}`, `{"gpu":1e99}`, `{"gpu":"8"}`} {
		if err := json.Unmarshal([]byte(bad), &a); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
