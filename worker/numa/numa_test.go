package numa

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// board is a made-up machine: cores of two hardware threads each, threads numbered as
// Linux does, first all first threads and then all second ones.
type board struct {
	nodes    [][]int     // cores of each node
	sockets  []int       // of each node; nil: its own
	complex  int         // cores that share the highest cache
	devices  []string    // numa_node of each device, as sysfs has it
	without  []string    // files that are not there
	instead  [2]string   // a file, and what it holds
	disabled map[int]int // CPUs that may not be used
}

func (b *board) machine() (Machine, []Device) {
	sys := fstest.MapFS{}
	put := func(name, text string) { sys[name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	cores := 0
	for _, n := range b.nodes {
		cores += len(n)
	}
	threads := func(list []int) []int {
		var all []int
		for _, c := range list {
			all = append(all, c, c+cores)
		}
		return joined([][]int{all})
	}
	put("devices/system/node/possible", fmt.Sprintf("0-%d", len(b.nodes)))
	var m Machine
	for n, list := range b.nodes {
		put(fmt.Sprintf("devices/system/node/node%d/cpulist", n), FormatList(threads(list)))
		socket := n
		if b.sockets != nil {
			socket = b.sockets[n]
		}
		for i, core := range list {
			group := list
			if b.complex > 0 {
				first := i / b.complex * b.complex
				group = list[first:min(first+b.complex, len(list))]
			}
			for _, cpu := range []int{core, core + cores} {
				dir := fmt.Sprintf("devices/system/cpu/cpu%d/", cpu)
				put(dir+"topology/physical_package_id", fmt.Sprint(socket))
				put(dir+"topology/thread_siblings_list", FormatList(threads([]int{core})))
				for j, c := range []struct{ kind, level, shared string }{
					{"Data", "1", FormatList(threads([]int{core}))},
					{"Instruction", "9", FormatList(threads(list))},
					{"Unified", "3", FormatList(threads(group))},
				} {
					at := fmt.Sprintf("%scache/index%d/", dir, j)
					put(at+"type", c.kind)
					put(at+"level", c.level)
					put(at+"shared_cpu_list", c.shared)
				}
				put(dir+"cache/uevent", "")
				if _, off := b.disabled[cpu]; !off {
					m.Allowed = append(m.Allowed, cpu)
				}
			}
		}
	}
	var devices []Device
	for i, n := range b.devices {
		d := Device{Name: fmt.Sprintf("GPU %d", i), PCI: fmt.Sprintf("0000:%02x:00.0", i+1)}
		if n == "fake" {
			d.PCI = fmt.Sprintf("%s%d", FakePrefix, i)
		} else if n != "" {
			put("bus/pci/devices/"+d.PCI+"/numa_node", n)
		} else {
			d.PCI = ""
		}
		devices = append(devices, d)
	}
	for _, name := range b.without {
		delete(sys, name)
	}
	if b.instead[0] != "" {
		put(b.instead[0], b.instead[1])
	}
	m.Sys = sys
	return m, devices
}

// two is a machine of two nodes with eight cores each: 0-7 and their second threads 16-23,
// 8-15 and 24-31.
func two(devices ...string) board {
	return board{nodes: [][]int{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}, devices: devices}
}

func with(b board, change func(*board)) board {
	change(&b)
	return b
}

// TestNear: what each word means, as torch has it.
func TestNear(t *testing.T) {
	t.Parallel()
	four := board{nodes: [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}, sockets: []int{0, 0, 1, 1}, devices: []string{"0", "3"}}
	for name, c := range map[string]struct {
		b    board
		mode string
		want string // of all devices, in order
	}{
		"node":              {two("0", "1"), api.NumaNode, "0-7,16-23 8-15,24-31"},
		"crossed":           {two("1", "0"), api.NumaNode, "8-15,24-31 0-7,16-23"},
		"one node":          {board{nodes: [][]int{{0, 1}}, devices: []string{"-1"}}, api.NumaNode, "0-3"},
		"not all usable":    {with(two("1"), func(b *board) { b.disabled = map[int]int{8: 0, 31: 0} }), api.NumaNode, "9-15,24-30"},
		"socket":            {four, api.NumaSocket, "0-3,8-11 4-7,12-15"},
		"socket of one":     {two("0", "1"), api.NumaSocket, "0-7,16-23 8-15,24-31"},
		"node of a socket":  {four, api.NumaNode, "0-1,8-9 6-7,14-15"},
		"exclusive":         {two("1", "1", "0"), api.NumaExclusive, "8-11,24-27 12-15,28-31 0-7,16-23"},
		"exclusive, uneven": {two("0", "0", "0"), api.NumaExclusive, "0-2,16-18 3-5,19-21 6-7,22-23"},
		"exclusive, no second thread": {
			with(two("0", "0"), func(b *board) { b.disabled = map[int]int{16: 0, 0: 0, 1: 0, 17: 0} }), api.NumaExclusive, "2-4,18-20 5-7,21-23",
		},
		"complex": {with(two("0", "0", "1"), func(b *board) { b.complex = 4 }), api.NumaCoreComplex, "0-3,16-19 4-7,20-23 8-11,24-27"},
		"complex, more devices": {
			with(two("0", "0", "0"), func(b *board) { b.complex = 4 }), api.NumaCoreComplex, "0-3,16-19 4-7,20-23 0-3,16-19",
		},
		"complex, largest first": {
			with(two("0", "0"), func(b *board) { b.complex, b.disabled = 4, map[int]int{1: 0} }), api.NumaCoreComplex, "4-7,20-23 0,2-3,16-19",
		},
		"fakes in turn": {two("fake", "fake", "fake"), api.NumaNode, "0-7,16-23 8-15,24-31 0-7,16-23"},
		"fakes only where CPUs are": {
			with(two("fake", "fake"), func(b *board) { b.nodes = [][]int{{}, {0, 1}} }), api.NumaNode, "0-3 0-3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, devices := c.b.machine()
			var got []string
			for i := range devices {
				list, err := m.Near(c.mode, devices, i)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, FormatList(list))
			}
			if all := strings.Join(got, " "); all != c.want {
				t.Errorf("got %s, want %s", all, c.want)
			}
		})
	}
}

// TestUntold: where the machine does not say, nothing is guessed.
func TestUntold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		b    board
		mode string
		want string
	}{
		"no address":        {two(""), api.NumaNode, "does not tell the PCI address of GPU 0"},
		"unknown device":    {with(two("0"), func(b *board) { b.without = []string{"bus/pci/devices/0000:01:00.0/numa_node"} }), api.NumaNode, "find the NUMA node of GPU 0"},
		"no number":         {with(two("0"), func(b *board) { b.instead = [2]string{"bus/pci/devices/0000:01:00.0/numa_node", "x"} }), api.NumaNode, "holds no number"},
		"no such node":      {two("7"), api.NumaNode, "find the CPUs of NUMA node 7"},
		"none usable":       {with(two("0"), func(b *board) { b.nodes = [][]int{{}, {0, 1}} }), api.NumaNode, "none of the CPUs of NUMA node 0"},
		"none of a complex": {with(two("0"), func(b *board) { b.nodes = [][]int{{}, {0, 1}} }), api.NumaCoreComplex, "none of the CPUs"},
		"too few cores":     {board{nodes: [][]int{{0, 1}}, devices: []string{"0", "0", "0"}}, api.NumaExclusive, "2 usable cores for 3 devices"},
		"no socket":         {with(two("0"), func(b *board) { b.without = []string{"devices/system/cpu/cpu0/topology/physical_package_id"} }), api.NumaSocket, "find the socket of CPU 0"},
		"a broken list":     {with(two("0"), func(b *board) { b.instead = [2]string{"devices/system/node/node0/cpulist", "0-99999"} }), api.NumaNode, "no list of numbers"},
		"no caches":         {with(two("0"), func(b *board) { b.without = []string{"devices/system/cpu/cpu0/cache/index2/level"} }), api.NumaCoreComplex, "what CPU 0 shares"},
		"a fake's address":  {with(two("fake"), func(b *board) { b.without = []string{"devices/system/node/possible"} }), api.NumaNode, "find the NUMA nodes"},
		"an unknown word":   {two("0"), "rack", `"rack" is no way to bind ranks`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, devices := c.b.machine()
			list, err := m.Near(c.mode, devices, 0)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v; want an error with %q", list, err, c.want)
			}
		})
	}
	m, devices := (&board{nodes: [][]int{{0}}, devices: []string{"0"}}).machine()
	for _, i := range []int{-1, 1} {
		if _, err := m.Near(api.NumaNode, devices, i); err == nil {
			t.Errorf("device %d of 1", i)
		}
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "0": "0", "0-3": "0-3", " 4, 0-2 ,2": "0-2,4", "7,6,5,1": "1,5-7", "0,2,4": "0,2,4", "1023": "1023",
	} {
		list, err := ParseList(text)
		if got := FormatList(list); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "3-1", "-1", "1-", "0-1024", "99999999999", "1-2-3", strings.Repeat("0-1023,", 3)} {
		if list, err := ParseList(text); err == nil {
			t.Errorf("%q was read as %v", text, list)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("0-2,4,6-7")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseList(text)
		if err != nil {
			return
		}
		again, err := ParseList(FormatList(list))
		if err != nil || FormatList(again) != FormatList(list) {
			t.Errorf("%q: %v, then %v, %v", text, list, again, err)
		}
	})
}

// This machine's own sysfs can be read.
func TestHere(t *testing.T) {
	t.Parallel()
	m, err := Here()
	if err != nil || len(m.Allowed) == 0 {
		t.Fatalf("%v, %v", m.Allowed, err)
	}
	if _, err := m.nodes(); err != nil {
		t.Logf("no NUMA nodes here: %v", err)
		return
	}
	list, err := m.Near(api.NumaNode, []Device{{Name: "a fake", PCI: FakePrefix + "0"}}, 0)
	if err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	}
}
