package shim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func envOf(list []string) map[string]string {
	m := map[string]string{}
	for _, e := range list {
		k, v, _ := strings.Cut(e, "=")
		m[k] = v
	}
	return m
}

// --virtual-local-rank is torchrun's rule, with its order of variables.
func TestVirtualLocalRank(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		devices, launch []string
		local           int64
		cuda, hip       string
	}{
		{nil, nil, 3, "3", ""},
		{nil, []string{"CUDA_VISIBLE_DEVICES=4, 5,6"}, 1, "5", ""},
		{nil, []string{"CUDA_VISIBLE_DEVICES=4,5"}, 2, "", ""},
		{nil, []string{"CUDA_VISIBLE_DEVICES=4,5", "HIP_VISIBLE_DEVICES=6,7"}, 1, "7", "7"},
		{[]string{"GPU-a", "GPU-b"}, []string{"CUDA_VISIBLE_DEVICES=4,5"}, 1, "GPU-b", ""},
	} {
		a := &wire.AttemptSpec{VirtualLocalRank: true, Ranks: []wire.RankSpec{{LocalRank: c.local}}, ShutdownTimeout: unit.Duration(1500 * time.Millisecond)}
		e := envOf(rankEnv(&Config{Devices: c.devices}, a, a.Ranks[0], map[string]string{}, c.launch, "s", "e"))
		if e["LOCAL_RANK"] != "0" || e["CUDA_VISIBLE_DEVICES"] != c.cuda || e["HIP_VISIBLE_DEVICES"] != c.hip || e["TROUPE_SHUTDOWN_TIMEOUT"] != "1.5" {
			t.Errorf("%+v: %v", c, e)
		}
	}
	a := &wire.AttemptSpec{Ranks: []wire.RankSpec{{LocalRank: 3}}}
	if e := envOf(rankEnv(&Config{}, a, a.Ranks[0], map[string]string{}, nil, "s", "e")); e["LOCAL_RANK"] != "3" || e["TORCHELASTIC_USE_AGENT_STORE"] != "False" {
		t.Errorf("%v", e)
	}
	if got := rankArgs([]string{"a${local_rank}", "$local_rank", "${rank}"}, 7); !slices.Equal(got, []string{"a7", "$local_rank", "${rank}"}) {
		t.Errorf("%q", got)
	}
}
