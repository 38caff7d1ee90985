// Package gpu tells which GPUs a node has, through NVML or as a fake. It is the only
// importer of go-nvml. It reads devices and nothing else: which rank sees which
// device is the shim's business, what a health means for placement the head's.
package gpu

import (
	"context"
	"errors"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Health of a device.
const (
	HealthOK = "ok"
	// HealthUnknown: the driver did not answer. Never to be taken for ok.
	HealthUnknown = "unknown"
	// HealthLost: the driver says that the device has fallen off.
	HealthLost = "lost"
	// HealthBusy: somebody who holds no allocation here uses it. A source does not know
	// that; the agent finds it out.
	HealthBusy = "busy"
)

// ErrNoDriver is wrapped when this machine has no usable NVIDIA driver, or this
// binary was built without NVML: the node has no GPUs and everything else works.
var ErrNoDriver = errors.New("no NVIDIA driver")

// ErrStuck is wrapped when the driver has not answered in time and nothing is known
// from before.
var ErrStuck = errors.New("the NVIDIA driver does not answer")

// Source lists the devices of one node. It may be called from several goroutines.
type Source interface {
	// Devices returns every device in index order, also those in bad health. It
	// returns within seconds even when the driver hangs: then with what was known
	// before and HealthUnknown.
	Devices(ctx context.Context) ([]Device, error)
	// Close releases the driver. A driver that hangs is left behind.
	Close() error
}

// Device is one GPU.
type Device struct {
	Index  int64
	UUID   string
	Model  string
	PCI    string     // address as sysfs has it, domain:bus:device.function; "": unknown. See numa.FakePrefix
	Total  unit.Bytes // 0: unknown
	Used   unit.Bytes // -1: unknown
	Health string
	// Processes that hold memory of it, as far as the driver tells; another pid namespace
	// can hide them.
	Processes []Process
}

// Process is one that uses a device. Drivers have reported processes that are long gone
// and sizes that cannot be: names are for people, and the proof is Used.
type Process struct {
	PID    int
	Memory unit.Bytes // -1: unknown
}

// Idle reports whether the device's memory is free, so that it may be offered: what is
// in use is within the headroom. False also when it is not known (P2).
func (d Device) Idle() bool {
	return d.Health == HealthOK && d.Used >= 0 && d.Used <= d.Total-Usable(d.Total)
}

// Usable is what of a device's memory may be promised: its total less a headroom of
// 3 %, at least 512 MiB, for the driver and for CUDA contexts. It is never negative.
func Usable(total unit.Bytes) unit.Bytes {
	headroom := total / 100 * 3
	headroom += total % 100 * 3 / 100 // without overflow, rounded down
	return max(0, total-max(headroom, 512*unit.MiB))
}

// API is the device as head and users see it.
func (d Device) API() api.GPU {
	g := api.GPU{
		Index: d.Index, UUID: d.UUID, Model: d.Model,
		Total: int64(d.Total), Usable: int64(Usable(d.Total)), Health: d.Health,
	}
	if d.Used >= 0 {
		used := int64(d.Used)
		g.Used = &used
	}
	return g
}

// None is a node without GPUs.
func None() Source { return fixed(nil) }

// fixed is a source whose devices never change.
type fixed []Device

func (f fixed) Devices(ctx context.Context) ([]Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return append([]Device(nil), f...), nil
}

func (fixed) Close() error { return nil }
