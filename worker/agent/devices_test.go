package agent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/gpu"
	"github.com/troupe-runtime/troupe/worker/process"
)

// driven is a source of GPUs that says what the test wants.
type driven struct {
	mu   sync.Mutex
	list []gpu.Device
	err  error
}

func (s *driven) Devices(context.Context) ([]gpu.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list), s.err
}

func (*driven) Close() error { return nil }

func (s *driven) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func twoGPUs() *driven {
	return &driven{list: []gpu.Device{
		{Index: 0, UUID: "GPU-0", Total: 80 * unit.GiB, Health: gpu.HealthOK},
		{Index: 1, UUID: "GPU-1", Total: 80 * unit.GiB, Health: gpu.HealthOK},
	}}
}

// TestDevicesAreFreedOnProof: an allocation's end is not told before the driver shows
// the memory of its devices free; after a while the reason is (P2).
func TestDevicesAreFreedOnProof(t *testing.T) {
	for _, how := range []string{"ended", "shim killed", "agent restarted"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			src := twoGPUs()
			_, stop := w.agent(func(o *Options) { o.GPU, o.ReleasePatience = src, 100*time.Millisecond })
			at := w.attempt("g1", 1, 1, hello)
			at.Devices = []string{"GPU-1"}
			w.want(at)
			w.event("g1", wire.EventStarted, 1)
			src.set(func() {
				src.list[1].Used = 31 * unit.GiB
				src.list[1].Processes = []gpu.Process{{PID: os.Getpid(), Memory: 30 * unit.GiB}}
			})
			if how == "shim killed" {
				if p, err := os.FindProcess(w.journal("g1").PID); err != nil || p.Kill() != nil {
					t.Fatal("kill the shim", err)
				}
			}
			w.want()
			dirty := w.event("g1", wire.EventDirty, 0)
			for _, want := range []string{"GPU 1 (GPU-1)", "31744 MiB of its memory are in use", "with 30720 MiB"} {
				if !strings.Contains(dirty.Message, want) {
					t.Errorf("%q does not say %q", dirty.Message, want)
				}
			}
			if k := w.kinds("g1"); slices.Contains(k, wire.EventGone) || slices.Contains(k, wire.EventShimLost) {
				t.Fatalf("gone while its memory is held: %v", k)
			}
			if how == "agent restarted" {
				stop()
				w.agent(func(o *Options) { o.GPU, o.ReleasePatience = src, 100*time.Millisecond })
			}
			src.set(func() { src.list[1].Used, src.list[1].Processes = 0, nil })
			kind := wire.EventGone
			if how == "shim killed" {
				kind = wire.EventShimLost
			}
			w.event("g1", kind, 0)
			if how == "agent restarted" && slices.Contains(w.kinds("g1"), wire.EventShimLost) {
				t.Errorf("the shim had ended as it should: %v", w.kinds("g1"))
			}
			if n := len(w.events); how != "agent restarted" && w.events[n-1].Seq != uint64(n) {
				t.Errorf("the last of %d events has number %d", n, w.events[n-1].Seq)
			}
		})
	}
}

// The last event keeps its place behind those that its shim has told the head without an
// agent: with a lower number the head would take it for one that it knows.
func TestReleaseKeepsItsPlace(t *testing.T) {
	a := &Agent{Options: Options{GPU: twoGPUs(), Clock: clock.Real(), StateDir: t.TempDir()}, allocs: map[string]*alloc{}}
	a.wakeReport, a.wakeSession = make(chan struct{}, 1), make(chan struct{}, 1)
	x := a.newAlloc("g1")
	x.devices, x.cfg.Devices = []string{"GPU-0"}, []string{"GPU-0"}
	a.mu.Lock()
	x.takeLocked(wire.AllocEvent{Alloc: "g1", Seq: 5, Kind: wire.EventGone, Generation: 7})
	a.mu.Unlock()
	x.release(t.Context())
	if len(x.pending) != 1 || x.pending[0].Seq != 5 || x.pending[0].Kind != wire.EventGone || x.pending[0].Generation != 7 || !x.gone {
		t.Errorf("%+v", x.pending)
	}
}

// TestDevicesWithoutAnAnswer: what the driver does not say is no proof.
func TestDevicesWithoutAnAnswer(t *testing.T) {
	src := twoGPUs()
	x := &alloc{a: &Agent{Options: Options{GPU: src}}, id: "a", devices: []string{"GPU-0"}}
	x.cfg.Devices = x.devices
	x.a.allocs = map[string]*alloc{"a": x}
	for _, c := range []struct {
		name   string
		change func()
		want   string
	}{
		{"free", func() {}, ""},
		{"within the headroom", func() { src.list[0].Used = 2 * unit.GiB }, ""},
		{"in use", func() { src.list[0].Used = 3 * unit.GiB }, "3072 MiB of its memory are in use"},
		{"unknown use", func() { src.list[0].Used = -1 }, "in use"},
		{"lost", func() { src.list[0].Health = gpu.HealthLost }, "health lost"},
		{"vanished", func() { src.list = src.list[1:] }, "not there any more"},
		{"error", func() { src.err = errors.New("driver gone") }, "cannot be read: driver gone"},
		{"shared", func() {
			src.list[0].Used = 40 * unit.GiB
			x.a.allocs["b"] = &alloc{a: x.a, id: "b", devices: []string{"GPU-0"}}
		}, ""},
	} {
		fresh := twoGPUs()
		src.list, src.err = fresh.list, nil
		c.change()
		if got := x.unreleased(t.Context()); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestForeignUseBlocksTheOffer: a device that somebody else uses is told as busy, by
// name, and a process of an allocation is not somebody else.
func TestForeignUseBlocksTheOffer(t *testing.T) {
	sleeper := func(env ...string) int {
		c := exec.Command("sleep", "1000")
		c.Env = append([]string{"A=b"}, env...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		eventually(t, "exec", func() error {
			if b, _ := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/comm"); string(b) != "sleep\n" {
				return errors.New(string(b))
			}
			return nil
		})
		return c.Process.Pid
	}
	foreign, ours := sleeper(), sleeper(process.CookieEnv+"=mark-1")
	a := &Agent{allocs: map[string]*alloc{}}
	a.allocs["x"] = &alloc{a: a, id: "x", devices: []string{"GPU-1"}, mark: "mark-1"}
	held, marks := a.claims("")
	for _, c := range []struct {
		name   string
		d      gpu.Device
		health string
		note   string
	}{
		{"idle", gpu.Device{UUID: "GPU-0"}, "ok", ""},
		{"foreign", gpu.Device{UUID: "GPU-0", Used: 30 * unit.GiB, Processes: []gpu.Process{{PID: foreign, Memory: 30 * unit.GiB}}}, gpu.HealthBusy, "(sleep) with 30720 MiB, which Troupe did not start"},
		{"small and foreign", gpu.Device{UUID: "GPU-0", Used: 1, Processes: []gpu.Process{{PID: foreign, Memory: -1}}}, gpu.HealthBusy, strconv.Itoa(foreign)},
		{"held", gpu.Device{UUID: "GPU-1", Used: 30 * unit.GiB, Processes: []gpu.Process{{PID: ours, Memory: 30 * unit.GiB}}}, "ok", ""},
		{"held and foreign", gpu.Device{UUID: "GPU-1", Processes: []gpu.Process{{PID: ours}, {PID: foreign}}}, gpu.HealthBusy, strconv.Itoa(foreign)},
		{"nobody to be seen", gpu.Device{UUID: "GPU-0", Used: 30 * unit.GiB, Processes: []gpu.Process{{PID: 1 << 21}}}, gpu.HealthBusy, "nothing here holds it"},
		{"a process that is gone", gpu.Device{UUID: "GPU-0", Processes: []gpu.Process{{PID: 1 << 21}}}, "ok", ""},
	} {
		c.d.Total, c.d.Health = 80*unit.GiB, gpu.HealthOK
		g := a.view(&c.d, held, marks)
		if g.Health != c.health || !strings.Contains(g.Note, c.note) || (g.Note == "") != (c.note == "") {
			t.Errorf("%s: %s %q, want %s %q", c.name, g.Health, g.Note, c.health, c.note)
		}
	}
	lost := gpu.Device{UUID: "GPU-0", Used: -1, Health: gpu.HealthLost}
	if g := a.view(&lost, held, marks); g.Health != gpu.HealthLost {
		t.Errorf("%+v", g)
	}
}
