package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/gpu"
	"github.com/troupe-runtime/troupe/worker/numa"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// bound adds to a start which CPUs its ranks are bound to, if its job asks for that. As
// under torchrun nothing starts where that cannot be found out.
func (x *alloc) bound(m shim.AgentMessage) shim.AgentMessage {
	if m.Failure != "" || m.Dropped != "" || m.Attempt.NumaBinding == "" {
		return m
	}
	cpus, err := x.near(m.Attempt)
	if err != nil {
		return failedStart(m.Attempt, fmt.Sprintf("ranks cannot be bound to CPUs (numaBinding %s) on node %s: %v", clip(m.Attempt.NumaBinding), x.a.Name, err))
	}
	m.CPUs = cpus
	return m
}

// near are the CPUs of each rank of an attempt. Its device is the one that it counts by its
// local rank; with several for each rank the first of them.
func (x *alloc) near(at *wire.AttemptSpec) ([]string, error) {
	held := x.cfg.Devices
	if len(held) == 0 {
		return nil, errNoDevices
	}
	machine, err := x.a.Topology()
	if err != nil {
		return nil, err
	}
	devices, err := x.a.GPU.Devices(x.ctx)
	if err != nil {
		return nil, fmt.Errorf("the GPUs cannot be read: %w", err)
	}
	all := make([]numa.Device, len(devices))
	for i, d := range devices {
		all[i] = numa.Device{Name: fmt.Sprintf("GPU %d (%s)", d.Index, d.UUID), PCI: d.PCI}
	}
	cpus := make([]string, len(at.Ranks))
	for i, r := range at.Ranks {
		if r.LocalRank < 0 || r.LocalRank >= int64(len(at.Ranks)) {
			return nil, fmt.Errorf("rank %d has the local rank %d of %d", r.Rank, r.LocalRank, len(at.Ranks))
		}
		uuid := held[int(r.LocalRank)*len(held)/len(at.Ranks)]
		place := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == uuid })
		if place < 0 {
			return nil, fmt.Errorf("GPU %s is not there any more", uuid)
		}
		list, err := machine.Near(at.NumaBinding, all, place)
		if err != nil {
			return nil, err
		}
		cpus[i] = numa.FormatList(list)
	}
	return cpus, nil
}

var errNoDevices = errors.New("the job holds no GPU here")
