package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/gpu"
	"github.com/troupe-runtime/troupe/worker/process"
)

// A device is offered again only on proof (P2): nothing of the allocation lives, which
// its shim has proved, and the driver shows the memory free, which is proved here. And
// it is offered at all only while nobody uses it who holds nothing here.

const (
	releaseRetry = 200 * time.Millisecond
	// namedHolders bounds how many processes a text names.
	namedHolders = 3
)

// view turns a device into what the head is told, with who uses it unasked.
func (a *Agent) view(d *gpu.Device, held map[string]bool, marks [][]byte) api.GPU {
	g := d.API()
	if d.Health != gpu.HealthOK {
		return g
	}
	var foreign []gpu.Process
	for _, p := range d.Processes {
		if present(p.PID) && !marked(p.PID, marks) {
			foreign = append(foreign, p)
		}
	}
	switch {
	case len(foreign) > 0:
		g.Health, g.Note = gpu.HealthBusy, holders(foreign)+", which Troupe did not start"
	case !held[d.UUID] && !d.Idle():
		g.Health, g.Note = gpu.HealthBusy, inUse(d)+" though nothing here holds it"
	}
	return g
}

// claims are the devices that living allocations hold, and the marks of their processes.
func (a *Agent) claims(but string) (held map[string]bool, marks [][]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held = map[string]bool{}
	for _, x := range a.allocs {
		if x.gone || len(x.devices) == 0 {
			continue
		}
		if x.mark != "" {
			marks = append(marks, []byte(process.CookieEnv+"="+x.mark+"\x00"))
		}
		for _, uuid := range x.devices {
			held[uuid] = held[uuid] || x.id != but
		}
	}
	return held, marks
}

// claim makes the allocation's devices and the mark of its processes known.
func (x *alloc) claim() {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	x.devices, x.mark = x.cfg.Devices, x.cfg.Cookie
}

func present(pid int) bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return err == nil // else of another pid namespace, or gone
}

// marked reports whether a process was started with one of the marks.
func marked(pid int, marks [][]byte) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(marks, func(m []byte) bool {
		return bytes.HasPrefix(env, m) || bytes.Contains(env, append([]byte{0}, m...))
	})
}

// holders names processes and what they hold.
func holders(list []gpu.Process) string {
	slices.SortFunc(list, func(p, q gpu.Process) int {
		return cmp.Or(cmp.Compare(q.Memory, p.Memory), cmp.Compare(p.PID, q.PID))
	})
	parts := make([]string, 0, namedHolders)
	for _, p := range list[:min(len(list), namedHolders)] {
		text := "process " + strconv.Itoa(p.PID)
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "comm")); err == nil {
			text += " (" + strings.ToValidUTF8(strings.TrimSpace(string(b)), "?") + ")"
		}
		if p.Memory > 0 {
			text += " with " + mebibytes(p.Memory)
		}
		parts = append(parts, text)
	}
	out := "used by " + strings.Join(parts, ", ")
	if n := len(list) - namedHolders; n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}

func mebibytes(b unit.Bytes) string { return fmt.Sprintf("%d MiB", b/unit.MiB) }

func inUse(d *gpu.Device) string { return mebibytes(d.Used) + " of its memory are in use" }

// unreleased says which of an allocation's devices cannot be offered again yet and why,
// "" when the driver shows all of them free. Of a device that another allocation shares
// the memory proves nothing.
func (x *alloc) unreleased(ctx context.Context) string {
	shared, _ := x.a.claims(x.id)
	devices, err := x.a.GPU.Devices(ctx)
	if err != nil {
		return fmt.Sprintf("the GPUs cannot be read: %v", err)
	}
	var said []string
	for _, uuid := range x.cfg.Devices {
		if shared[uuid] {
			continue
		}
		i := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == uuid })
		if i < 0 {
			said = append(said, "GPU "+uuid+" is not there any more")
			continue
		}
		d := &devices[i]
		switch {
		case d.Health != gpu.HealthOK:
			said = append(said, fmt.Sprintf("GPU %d (%s): health %s", d.Index, uuid, d.Health))
		case !d.Idle():
			text := fmt.Sprintf("GPU %d (%s): %s", d.Index, uuid, inUse(d))
			if len(d.Processes) > 0 {
				text += ", " + holders(slices.Clone(d.Processes))
			}
			said = append(said, text)
		}
	}
	return strings.Join(said, "; ")
}

// release tells the end that take has kept back, once the devices are free. Until then
// they are held, and after a while the reason is told.
func (x *alloc) release(ctx context.Context) {
	x.hangUp() // its shim has said its last word
	begin := x.a.Clock.Boot()
	told := ""
	for retry := releaseRetry; ; retry = min(2*retry, dirtyRetry) {
		why := x.unreleased(ctx)
		if ctx.Err() != nil {
			return // the next life proves it
		}
		if why == "" {
			break
		}
		if why != told && x.a.Clock.Boot()-begin >= x.a.ReleasePatience {
			told = why
			x.a.Logger.Error("devices are not free after the end of their processes", "alloc", x.id, "why", why)
			x.emit(wire.AllocEvent{Kind: wire.EventDirty, Message: clip(why)})
			x.settle()
		}
		if x.a.Clock.Sleep(ctx, retry) != nil {
			return
		}
	}
	x.a.mu.Lock()
	ev := *x.last
	x.last, x.free = nil, true
	x.a.mu.Unlock()
	x.emit(wire.AllocEvent{Kind: ev.Kind, Generation: ev.Generation, Message: ev.Message})
	x.settle()
}

// keepsBack takes the last event of an allocation with devices aside until they are
// proved free. Agent.mu is held.
func (x *alloc) keepsBack(ev *wire.AllocEvent) bool {
	if ev.Kind != wire.EventGone && ev.Kind != wire.EventShimLost || x.free || len(x.devices) == 0 {
		return false
	}
	x.last = ev
	// What is told instead goes on from here: the shim may have told the head everything
	// before by itself, while there was no agent, and a lower number would be old news.
	x.seq = max(x.seq, ev.Seq-1)
	wake(x.wake)
	return true
}

func (x *alloc) isReleasing() bool {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	return x.last != nil
}
