package numa

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// FakePrefix begins the address of a device that exists only in the books; a number
// follows. Such devices lie on the machine's nodes in turn.
const FakePrefix = "fake:"

// maxCPU is one more than the highest number that a set of CPUs can hold.
const maxCPU = 1024

// Machine is what sysfs tells of one machine.
type Machine struct {
	// Sys is the tree of /sys.
	Sys fs.FS
	// Allowed are the CPUs that ranks may use at all, ascending.
	Allowed []int
}

// Device is one device of the machine.
type Device struct {
	Name string // for errors
	PCI  string // domain:bus:device.function as sysfs has it, or FakePrefix and a number
}

// Here is this machine, with the CPUs that this process may use.
func Here() (Machine, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return Machine{}, fmt.Errorf("read which CPUs may be used: %w", err)
	}
	m := Machine{Sys: os.DirFS("/sys")}
	for c := range maxCPU {
		if set.IsSet(c) {
			m.Allowed = append(m.Allowed, c)
		}
	}
	return m, nil
}

// Near returns the CPUs for the rank of all[device], ascending and never empty. all are
// the machine's devices in index order: where CPUs are divided, all of them have a part,
// so that no two jobs are given the same one.
func (m Machine) Near(mode string, all []Device, device int) ([]int, error) {
	if device < 0 || device >= len(all) {
		return nil, fmt.Errorf("there is no device %d among %d", device, len(all))
	}
	node, err := m.nodeOf(all[device])
	if err != nil {
		return nil, err
	}
	var cpus []int
	switch mode {
	case api.NumaNode:
		cpus, err = m.onNode(node)
	case api.NumaSocket:
		cpus, err = m.onSocket(node)
	case api.NumaExclusive, api.NumaCoreComplex:
		var place, of int
		if place, of, err = m.placeOn(node, all, device); err != nil {
			break
		}
		if mode == api.NumaExclusive {
			cpus, err = m.part(node, place, of)
		} else {
			cpus, err = m.complex(node, place)
		}
	default:
		return nil, fmt.Errorf("%q is no way to bind ranks: %s", mode, strings.Join(api.NumaBindings, ", "))
	}
	if err == nil && len(cpus) == 0 {
		err = fmt.Errorf("none of the CPUs of NUMA node %d, where %s lies, may be used", node, all[device].Name)
	}
	return cpus, err
}

// nodeOf is the NUMA node of a device.
func (m Machine) nodeOf(d Device) (int, error) {
	if d.PCI == "" {
		return 0, fmt.Errorf("the driver does not tell the PCI address of %s", d.Name)
	}
	if number, fake := strings.CutPrefix(d.PCI, FakePrefix); fake {
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 {
			return 0, fmt.Errorf("%s has the address %q", d.Name, d.PCI)
		}
		nodes, err := m.nodes()
		if err != nil {
			return 0, err
		}
		return nodes[i%len(nodes)], nil
	}
	n, err := m.number(path.Join("bus/pci/devices", d.PCI, "numa_node"))
	if err != nil {
		return 0, fmt.Errorf("find the NUMA node of %s: %w", d.Name, err)
	}
	return max(n, 0), nil // -1 where there is one node only
}

// placeOn is the device's place among those on its node, and how many they are.
func (m Machine) placeOn(node int, all []Device, device int) (place, of int, err error) {
	for i, d := range all {
		n, err := m.nodeOf(d)
		if err != nil {
			return 0, 0, err
		}
		if n != node {
			continue
		}
		if i < device {
			place++
		}
		of++
	}
	return place, of, nil
}

// nodes are the machine's NUMA nodes that have usable CPUs.
func (m Machine) nodes() ([]int, error) {
	possible, err := m.list("devices/system/node/possible")
	if err != nil {
		return nil, fmt.Errorf("find the NUMA nodes: %w", err)
	}
	var nodes []int
	for _, n := range possible {
		cpus, err := m.onNode(n)
		if errors.Is(err, fs.ErrNotExist) {
			continue // possible, and not there
		}
		if err != nil {
			return nil, err
		}
		if len(cpus) > 0 { // else memory alone
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no NUMA node has a CPU that may be used")
	}
	return nodes, nil
}

// onNode are the usable CPUs of a node.
func (m Machine) onNode(node int) ([]int, error) {
	all, err := m.list(fmt.Sprintf("devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil, fmt.Errorf("find the CPUs of NUMA node %d: %w", node, err)
	}
	return m.usable(all), nil
}

func (m Machine) usable(cpus []int) []int {
	return slices.DeleteFunc(cpus, func(c int) bool { return !slices.Contains(m.Allowed, c) })
}

// onSocket are the usable CPUs of all nodes of a node's socket.
func (m Machine) onSocket(node int) ([]int, error) {
	cpus, err := m.onNode(node)
	if err != nil || len(cpus) == 0 {
		return nil, err
	}
	socket, err := m.socketOf(cpus[0])
	if err != nil {
		return nil, err
	}
	nodes, err := m.nodes()
	if err != nil {
		return nil, err
	}
	var all []int
	for _, n := range nodes {
		cpus, err := m.onNode(n)
		if err != nil {
			return nil, err
		}
		s, err := m.socketOf(cpus[0])
		if err != nil {
			return nil, err
		}
		if s == socket {
			all = append(all, cpus...)
		}
	}
	slices.Sort(all)
	return all, nil
}

func (m Machine) socketOf(cpu int) (int, error) {
	n, err := m.number(fmt.Sprintf("devices/system/cpu/cpu%d/topology/physical_package_id", cpu))
	if err != nil {
		return 0, fmt.Errorf("find the socket of CPU %d: %w", cpu, err)
	}
	return n, nil
}

// part divides the cores of a node evenly, the first ones getting one more, and returns
// the part of one device with all hardware threads of its cores.
func (m Machine) part(node, place, of int) ([]int, error) {
	cores, err := m.grouped(node, func(cpu int) ([]int, error) {
		return m.list(fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	})
	if err != nil {
		return nil, err
	}
	each, more := len(cores)/of, len(cores)%of
	if each < 1 {
		return nil, fmt.Errorf("NUMA node %d has %d usable cores for %d devices: fewer than one each", node, len(cores), of)
	}
	from := place*each + min(place, more)
	to := from + each
	if place < more {
		to++
	}
	return joined(cores[from:to]), nil
}

// complex is one group of cores that share the highest cache; the largest groups are
// given first, and again when there are more devices than groups.
func (m Machine) complex(node, place int) ([]int, error) {
	groups, err := m.grouped(node, m.sharing)
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	slices.SortStableFunc(groups, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
	return joined(groups[place%len(groups) : place%len(groups)+1]), nil
}

// grouped puts the usable CPUs of a node into groups that share something, those with the
// lowest first CPU first.
func (m Machine) grouped(node int, with func(cpu int) ([]int, error)) ([][]int, error) {
	cpus, err := m.onNode(node)
	if err != nil {
		return nil, err
	}
	groups := map[int][]int{}
	for _, c := range cpus {
		all, err := with(c)
		if err != nil {
			return nil, fmt.Errorf("find what CPU %d shares with others: %w", c, err)
		}
		if len(all) == 0 {
			all = []int{c}
		}
		groups[slices.Min(all)] = append(groups[slices.Min(all)], c)
	}
	var out [][]int
	for _, first := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[first])
	}
	return out, nil
}

// sharing are the CPUs that share the highest cache of one.
func (m Machine) sharing(cpu int) ([]int, error) {
	dir := fmt.Sprintf("devices/system/cpu/cpu%d/cache", cpu)
	entries, err := fs.ReadDir(m.Sys, dir)
	if err != nil {
		return nil, err
	}
	highest, cpus := -1, []int(nil)
	for _, e := range entries {
		number, is := strings.CutPrefix(e.Name(), "index")
		if _, err := strconv.ParseUint(number, 10, 16); !is || err != nil {
			continue
		}
		kind, err := m.text(path.Join(dir, e.Name(), "type"))
		if err != nil {
			return nil, err
		}
		if kind != "Unified" && kind != "Data" {
			continue
		}
		level, err := m.number(path.Join(dir, e.Name(), "level"))
		if err != nil {
			return nil, err
		}
		if level <= highest {
			continue
		}
		highest = level
		if cpus, err = m.list(path.Join(dir, e.Name(), "shared_cpu_list")); err != nil {
			return nil, err
		}
	}
	return cpus, nil
}

func joined(groups [][]int) []int {
	all := slices.Concat(groups...)
	slices.Sort(all)
	return all
}

// text reads a file of sysfs, which is small.
func (m Machine) text(name string) (string, error) {
	b, err := fs.ReadFile(m.Sys, name)
	return strings.TrimSpace(string(b)), err
}

func (m Machine) number(name string) (int, error) {
	text, err := m.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s holds no number: %.40q", name, text)
	}
	return n, nil
}

func (m Machine) list(name string) ([]int, error) {
	text, err := m.text(name)
	if err != nil {
		return nil, err
	}
	l, err := ParseList(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}
