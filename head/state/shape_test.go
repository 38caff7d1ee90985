package state

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// asks submits a group that asks for so many devices, at a time of the log.
func (m *machine) asks(id string, gpus int64, where ...api.LabelRule) {
	m.ok(KindCreateGroup, CreateGroup{ID: id, Spec: api.GroupSpec{
		Bundles: []api.Bundle{{Resources: api.Resources{GPUs: gpus}}, {Resources: api.Resources{GPUs: gpus}}}, Wishes: api.Wishes{Where: where},
	}})
}

func weights(v *View) string {
	out := ""
	for _, s := range v.Asked() {
		out += fmt.Sprintf("%d:%.2f ", s.Bundle.GPUs, float64(s.Weight)/shapeUnit)
	}
	return out
}

// What was asked for is kept after it has ended, and counts half after each half-life.
func TestAskedShapesDecay(t *testing.T) {
	m := newMachine(t)
	m.ok(KindPutSettings, PutSettings{HalfLife: new(int64(time.Hour))})
	m.asks("a", 1)
	m.asks("b", 1)
	m.ok(KindCreateGroup, CreateGroup{ID: "cpu", Spec: api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1000}}}}})
	m.ok(KindRemoveGroup, RemoveGroup{Group: "a"})
	m.later += int64(time.Hour)
	m.asks("c", 4)
	if got := weights(m.s.View()); got != "1:1.00 4:1.00 " {
		t.Errorf("after a half-life: %s", got)
	}
	m.later += int64(2 * time.Hour)
	m.asks("d", 4)
	if got := weights(m.s.View()); got != "1:0.25 4:1.25 " {
		t.Errorf("after two more: %s", got)
	}
	want := m.snapshot()
	if got := replayed(t, m.log, 2, 5); !bytes.Equal(got, want) {
		t.Error("replayed from snapshots, the shapes differ")
	}
}

// Of more kinds than are kept those go that count least.
func TestAskedShapesAreBounded(t *testing.T) {
	kept := keptShapes
	keptShapes = 3
	t.Cleanup(func() { keptShapes = kept })
	m := newMachine(t)
	m.asks("a", 1)
	m.asks("a2", 1)
	for gpus := int64(2); gpus < 9; gpus++ {
		m.asks(fmt.Sprint("b", gpus), gpus, api.LabelRule{Key: "zone", Op: "=", Values: []string{"z"}})
	}
	list := m.s.View().Asked()
	if len(list) != 3 || list[0].Bundle.GPUs != 1 || list[2].Bundle.GPUs != 8 || len(list[2].Where) != 1 {
		t.Errorf("%+v", list)
	}
}
