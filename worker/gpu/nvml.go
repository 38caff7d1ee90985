//go:build linux && cgo && !nonvml

package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// maxDevices bounds what a driver may claim.
const maxDevices = 256

// needed are the functions that are called, each with the names it may have. The
// library is linked lazily, so that a call to a function which this driver lacks
// would kill the process, even days later: all are looked up once, at the start.
var needed = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlShutdown"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetMemoryInfo"},
}

// listing are the names of the function that tells a device's processes. A driver
// without it serves all the same.
var listing = []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"}

// addressing are the names of the function that tells where a device is plugged in; also
// without it a driver serves.
var addressing = []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}

// maxProcesses bounds what is kept of one device.
const maxProcesses = 64

// NVML opens the driver's library. The error wraps ErrNoDriver when there is none,
// when it lacks a function, or when no driver is loaded; ErrStuck when it hangs.
func NVML(o NVMLOptions) (Source, error) {
	if o.Library == "" {
		o.Library = "libnvidia-ml.so.1"
	}
	// A typed nil in an interface is not nil, hence the two returns.
	w, err := watch(&driver{name: o.Library, lib: nvml.New(nvml.WithLibraryPath(o.Library))}, o.patience())
	if err != nil {
		return nil, err
	}
	return w, nil
}

// driver calls NVML. nvml.Return is an error even when it is SUCCESS, so a result is
// compared and never tested against nil; its text comes from the library, which may
// lack that function, so the number is printed.
type driver struct {
	name string
	held *dl.DynamicLibrary
	// lists: the driver tells which processes use a device.
	lists bool
	// places: it tells where a device is plugged in.
	places bool
	lib    nvml.Interface
}

func (d *driver) open() error {
	// Even the first call could be missing, so the symbols are looked up in a handle
	// of our own, which also keeps the library mapped while it is used.
	held := dl.New(d.name, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := held.Open(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	d.held = held
	err := d.start()
	if err != nil {
		_ = held.Close()
	}
	return err
}

func (d *driver) start() error {
	for _, names := range needed {
		if !d.has(names) {
			return fmt.Errorf("%w: %s lacks %s; install a newer driver", ErrNoDriver, d.name, names[0])
		}
	}
	d.lists, d.places = d.has(listing), d.has(addressing)
	switch r := d.lib.Init(); r {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%w: NVML does not start (code %d)", ErrNoDriver, int32(r))
	default:
		return fmt.Errorf("NVML does not start (code %d)", int32(r))
	}
}

// has reports whether the library has a function under one of its names.
func (d *driver) has(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return d.held.Lookup(n) == nil })
}

func (d *driver) read() ([]Device, error) {
	n, r := d.lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: NVML code %d", int32(r))
	}
	if n < 0 || n > maxDevices {
		return nil, fmt.Errorf("count GPUs: NVML claims %d", n)
	}
	list := make([]Device, 0, n)
	for i := range n {
		g, r := d.lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			if r == nvml.ERROR_GPU_IS_LOST {
				// Without a handle it has no name; the others stay in service.
				list = append(list, Device{Index: int64(i), Used: -1, Health: HealthLost})
				continue
			}
			return nil, fmt.Errorf("open GPU %d: NVML code %d", i, int32(r))
		}
		dev := describe(int64(i), g)
		if d.lists {
			dev.Processes = processes(g, dev.Total)
		}
		if d.places {
			if at, r := g.GetPciInfo(); r == nvml.SUCCESS {
				// A GPU is function 0 of its device.
				dev.PCI = fmt.Sprintf("%04x:%02x:%02x.0", at.Domain, at.Bus, at.Device)
			}
		}
		list = append(list, dev)
	}
	return list, nil
}

// describe reads one device. What cannot be read is unknown, and then so is its
// health.
func describe(index int64, g nvml.Device) Device {
	dev := Device{Index: index, Used: -1, Health: HealthOK}
	worse := func(r nvml.Return) {
		switch {
		case r == nvml.ERROR_GPU_IS_LOST:
			dev.Health = HealthLost
		case dev.Health == HealthOK:
			dev.Health = HealthUnknown
		}
	}
	if uuid, r := g.GetUUID(); r == nvml.SUCCESS && uuid != "" {
		dev.UUID = strings.ToValidUTF8(uuid, "?")
	} else {
		worse(r)
	}
	if name, r := g.GetName(); r == nvml.SUCCESS {
		dev.Model = strings.ToValidUTF8(name, "?")
	} else {
		worse(r)
	}
	m, r := g.GetMemoryInfo()
	if r == nvml.SUCCESS && m.Total < 1<<60 && m.Used <= m.Total {
		dev.Total, dev.Used = unit.Bytes(m.Total), unit.Bytes(m.Used)
	} else {
		worse(r) // also a row that cannot be true
	}
	return dev
}

// processes lists who uses a device. Rows that cannot be true are dropped.
func processes(g nvml.Device, total unit.Bytes) []Process {
	rows, r := g.GetComputeRunningProcesses()
	if r != nvml.SUCCESS {
		return nil
	}
	var out []Process
	for _, row := range rows[:min(len(rows), maxProcesses)] {
		if row.Pid == 0 || row.Pid > 1<<22 {
			continue // no pid of Linux
		}
		p := Process{PID: int(row.Pid), Memory: -1}
		if row.UsedGpuMemory <= uint64(total) {
			p.Memory = unit.Bytes(row.UsedGpuMemory)
		}
		out = append(out, p)
	}
	return out
}

func (d *driver) close() {
	d.lib.Shutdown()
	_ = d.held.Close()
}
