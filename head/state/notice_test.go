package state

import (
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestNotice: what a notice and somebody's word make together, in any order.
func TestNotice(t *testing.T) {
	notice := func(n uint64, deadline int64) NodeNotice {
		return NodeNotice{ID: "n1", Boot: "boot", Number: n, Reason: "spot notice on n1: x", Deadline: deadline}
	}
	back := func(n uint64) NodeNotice {
		return NodeNotice{ID: "n1", Boot: "boot", Number: n, Withdrawn: true}
	}
	drain := func(deadline int64) DrainNode {
		return DrainNode{ID: "n1", Cordon: &NodeDrain{Drain: true, Reason: "fan", Deadline: deadline}}
	}
	cordon, free := DrainNode{ID: "n1", Cordon: &NodeDrain{Reason: "look"}}, DrainNode{ID: "n1"}
	const far = 1 << 50
	for _, c := range []struct {
		name     string
		do       []any
		want     string // "", "cordoned" or "drained"
		deadline int64
		refused  string // of the last command
	}{
		{"a notice", []any{notice(1, far)}, "drained", far, ""},
		{"the same again", []any{notice(2, far), notice(2, far+9)}, "drained", far, ""},
		{"an older one", []any{notice(2, far), notice(1, far+9)}, "drained", far, ""},
		{"a newer one", []any{notice(2, far), notice(3, far+9)}, "drained", far + 9, ""},
		{"taken back", []any{notice(1, far), back(2)}, "", 0, ""},
		{"taken back before it came", []any{back(2), notice(1, far)}, "", 0, ""},
		{"taken back too late", []any{notice(1, 1), back(2)}, "drained", 1, ""},
		{"taken back without one", []any{back(2)}, "", 0, ""},
		{"on a cordon", []any{cordon, notice(1, far)}, "drained", far, ""},
		{"on a cordon, taken back", []any{cordon, notice(1, far), back(2)}, "cordoned", 0, ""},
		{"then a cordon, taken back", []any{notice(1, far), cordon, back(2)}, "cordoned", 0, ""},
		{"on a drain", []any{drain(0), notice(1, far)}, "drained", far, ""},
		{"on a sooner drain", []any{drain(far - 5), notice(1, far)}, "drained", far - 5, ""},
		{"then a drain, taken back", []any{notice(1, far), drain(far + 5), back(2)}, "drained", far + 5, ""},
		{"somebody's word", []any{drain(0), notice(1, far), free}, "", 0, ""},
		{"somebody's word, said again", []any{notice(1, far), free, notice(1, far)}, "", 0, ""},
		{"somebody's word, a new one", []any{notice(1, far), free, notice(2, far)}, "drained", far, ""},
		{"no node", []any{NodeNotice{ID: "n9", Boot: "boot", Number: 1, Deadline: far}}, "", 0, "not-found"},
		{"no number", []any{notice(0, far)}, "", 0, "invalid"},
		{"no deadline", []any{notice(1, 0)}, "", 0, "invalid"},
		{"another boot", []any{NodeNotice{ID: "n1", Boot: "old", Number: 1, Deadline: far}}, "", 0, "stale"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.node("n1", 0)
			v := m.s.View()
			boot := v.Node("n1").Info.BootID
			var r any
			for _, cmd := range c.do {
				switch x := cmd.(type) {
				case NodeNotice:
					if x.Boot == "boot" {
						x.Boot = boot
					}
					r = m.do(KindNodeNotice, x)
				case DrainNode:
					r = m.do(KindDrainNode, x)
				}
			}
			code := ""
			if ref, ok := r.(*Refused); ok {
				code = ref.Code
			}
			n := m.s.View().Node("n1")
			got, deadline := "", int64(0)
			if d := n.Cordoned(); d != nil {
				got, deadline = "cordoned", d.Deadline
				if d.Drain {
					got = "drained"
				}
			}
			if got != c.want || deadline != c.deadline || code != c.refused {
				t.Errorf("%q until %d, refused %q; want %q until %d, %q", got, deadline, code, c.want, c.deadline, c.refused)
			}
			if n.Schedulable() != (c.want == "") || n.Draining() != (c.want == "drained") {
				t.Errorf("takes work %v, draining %v", n.Schedulable(), n.Draining())
			}
		})
	}
}

// TestNoticeAfterReboot: a machine that was taken away and is back takes work again, and
// stays cordoned where somebody wants that.
func TestNoticeAfterReboot(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		m := newMachine(t)
		m.node("n1", 0)
		boot := m.s.View().Node("n1").Info.BootID
		m.do(KindNodeNotice, NodeNotice{ID: "n1", Boot: boot, Number: 1 << 60, Deadline: 1})
		if cordoned {
			m.do(KindDrainNode, DrainNode{ID: "n1", Cordon: &NodeDrain{}})
		}
		n := m.s.View().Node("n1")
		info := n.Info
		info.BootID, info.Started, info.Session = "next", info.Started+1, "next"
		m.do(KindRegisterNode, RegisterNode{ID: "n1", Info: info, Seq: 1})
		if n = m.s.View().Node("n1"); n.Notice != nil || n.State != api.NodeReady || n.Schedulable() == cordoned {
			t.Errorf("cordoned %v: %+v", cordoned, n)
		}
		// Its number counts from the beginning.
		m.do(KindNodeNotice, NodeNotice{ID: "n1", Boot: "next", Number: 1, Deadline: 1})
		if n = m.s.View().Node("n1"); n.Notice == nil {
			t.Error("a notice of the next boot is taken for an old one")
		}
	}
}
