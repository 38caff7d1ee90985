package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

func meshed(mesh []wire.MeshDim, world int64) []wire.Prepared {
	reports := preparedAll("digits", 5, 7, world)
	for i := range reports {
		reports[i].Mesh = mesh
	}
	return reports
}

// A mesh that all ranks give stands in the manifest, in its own order, and comes back; in
// which order the ranks reported changes no byte, and without one there is no such field.
func TestMesh(t *testing.T) {
	t.Parallel()
	mesh := []wire.MeshDim{{Name: "tp", Size: 2}, {Name: "dp", Size: 3}}
	reports := meshed(mesh, 6)
	data, _ := mustBuild(t, reports, nil)
	if want := `"mesh":[{"name":"tp","size":2},{"name":"dp","size":3}],"bytes"`; !strings.Contains(string(data), want) {
		t.Errorf("%s lacks %s", data, want)
	}
	m, err := Parse(data)
	if err != nil || !slices.Equal(m.Mesh, mesh) {
		t.Errorf("%+v, %v", m, err)
	}
	slices.Reverse(reports)
	if again, _ := mustBuild(t, reports, nil); string(again) != string(data) {
		t.Errorf("another order of reports gave other bytes:\n%s\n%s", data, again)
	}
	without, _ := mustBuild(t, meshed(nil, 6), nil)
	if strings.Contains(string(without), "mesh") {
		t.Errorf("%s", without)
	}
	if !sameReport(reports[0], reports[0]) {
		t.Error("a report differs from itself")
	}
	other := reports[0]
	other.Mesh = mesh[:1]
	if sameReport(reports[0], other) {
		t.Error("a report with another mesh passes for a repetition")
	}
}

func TestBadMeshes(t *testing.T) {
	t.Parallel()
	dim := func(name string, size int64) wire.MeshDim { return wire.MeshDim{Name: name, Size: size} }
	for want, mesh := range map[string][]wire.MeshDim{
		"holds 2 ranks, the world has 4":   {dim("dp", 2)},
		"holds 8 ranks, the world has 4":   {dim("dp", 2), dim("tp", 4)},
		"dp is twice":                      {dim("dp", 2), dim("dp", 2)},
		"has the size 0":                   {dim("dp", 4), dim("tp", 0)},
		"has the size -4":                  {dim("dp", -4), dim("tp", -1)},
		"has the size 9223372036854775807": {dim("a", 4), dim("b", 1<<63-1)},
		"its name is 1 to":                 {dim("", 4)},
		"17 dimensions":                    slices.Repeat([]wire.MeshDim{dim("dp", 1)}, 17),
	} {
		if _, _, err := Build(meshed(mesh, 4), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", mesh, err, want)
		}
	}
	for _, rank := range []int{0, 1, 3} {
		for _, mesh := range [][]wire.MeshDim{nil, {dim("tp", 4)}, {dim("dp", 1), dim("tp", 4)}} {
			reports := meshed([]wire.MeshDim{dim("dp", 4)}, 4)
			reports[rank].Mesh = mesh
			if _, _, err := Build(reports, nil); err == nil || !strings.Contains(err.Error(), "differ: device mesh") {
				t.Errorf("rank %d with %v: %v", rank, mesh, err)
			}
		}
	}
}
