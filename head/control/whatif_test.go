package control

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
)

func TestChangeRequest(t *testing.T) {
	for _, tc := range []struct {
		change, wrong string
		is            func(r *schedule.Request) bool
	}{
		{"ranks=3", "", func(r *schedule.Request) bool { return len(r.Spec.Bundles) == 3 && r.Spec.Bundles[2].GPUs == 1 }},
		{"gpus=2", "", func(r *schedule.Request) bool { return r.Spec.Bundles[1].GPUs == 2 }},
		{"priority=-5", "", func(r *schedule.Request) bool { return r.Spec.Priority == -5 }},
		{"strategy=strict_pack", "", func(r *schedule.Request) bool { return r.Spec.Strategy == api.StrictPack }},
		{"level=rack", "", func(r *schedule.Request) bool { return r.Spec.Level == "rack" }},
		{"preemptible=true", "", func(r *schedule.Request) bool { return r.Spec.Preemptible }},
		{"time=2h", "", func(r *schedule.Request) bool { return r.Expect == 2*time.Hour }},
		{"ranks", "NAME=VALUE", nil},
		{"ranks=0", "from 1 to", nil},
		{"ranks=99999999999999999999", "from 1 to", nil},
		{"gpus=-1", "from 0 to", nil},
		{"time=-2h", "duration", nil},
		{"whole-nodes=perhaps", "true or false", nil},
		{"colour=red", "may be changed", nil},
	} {
		r := schedule.Request{Spec: api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{GPUs: 1}}, {Resources: api.Resources{GPUs: 1}}}}}
		why := changeRequest(&r, tc.change)
		switch {
		case tc.wrong == "" && (why != "" || !tc.is(&r)):
			t.Errorf("%s: %q, %+v", tc.change, why, r.Spec)
		case tc.wrong != "" && !strings.Contains(why, tc.wrong):
			t.Errorf("%s: %q, want %q", tc.change, why, tc.wrong)
		}
	}
}
