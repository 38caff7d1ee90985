package main

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// The openb traces: pods are drawn uniformly with replacement until they ask for 130 % of
// the devices; they only arrive; what does not fit is dropped.

const overAsk = 130 // per cent of the devices

// cardMemory is what each device has; the traces ask for shares of devices, not for bytes.
const cardMemory = unit.Bytes(16) << 30

// table reads a compressed CSV with a header, one map a row.
func table(path string) ([]map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	in := csv.NewReader(plain)
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var rows []map[string]string
	for {
		record, err := in.Read()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		row := map[string]string{}
		for i, name := range head {
			row[name] = record[i]
		}
		rows = append(rows, row)
	}
}

// number reads one cell.
func number(row map[string]string, name string) (int64, error) {
	n, err := strconv.ParseInt(row[name], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("column %s of %v: %w", name, row, err)
	}
	return n, nil
}

func numbers(row map[string]string, names ...string) ([]int64, error) {
	out := make([]int64, len(names))
	for i, name := range names {
		n, err := number(row, name)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

func openbNodes(folder string) ([]*schedule.Node, error) {
	rows, err := table(filepath.Join(folder, "openb_node_list_gpu_node.csv.gz"))
	if err != nil {
		return nil, err
	}
	var nodes []*schedule.Node
	for _, row := range rows {
		n, err := numbers(row, "cpu_milli", "memory_mib", "gpu")
		if err != nil {
			return nil, err
		}
		cpu, mem := unit.MilliCPU(n[0]), unit.Bytes(n[1])<<20
		node := &schedule.Node{
			ID: row["sn"], Name: row["sn"], Ready: true, CPU: cpu, Memory: mem, FreeCPU: cpu, FreeMemory: mem,
			Labels: map[string]string{"gpu-model": row["model"]},
		}
		for d := range n[2] {
			node.GPUs = append(node.GPUs, schedule.GPU{
				UUID: fmt.Sprintf("%s-%d", node.ID, d), Model: row["model"], Usable: cardMemory, Free: cardMemory, Share: 1000, Healthy: true,
			})
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// pod is one row of a workload.
type pod struct {
	spec  api.GroupSpec
	milli int64 // of devices
}

func openbPods(folder, workload string) ([]pod, error) {
	rows, err := table(filepath.Join(folder, "openb_pod_list_"+workload+".csv.gz"))
	if err != nil {
		return nil, err
	}
	var pods []pod
	for _, row := range rows {
		n, err := numbers(row, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
		if err != nil {
			return nil, err
		}
		b := api.Bundle{Resources: api.Resources{CPU: unit.MilliCPU(n[0]), Memory: unit.Bytes(n[1]) << 20}}
		if n[2] == 1 && n[3] < 1000 {
			b.Share = n[3]
		} else {
			b.GPUs = n[2]
		}
		p := pod{spec: api.GroupSpec{Bundles: []api.Bundle{b}}, milli: n[2] * n[3]}
		if spec := row["gpu_spec"]; spec != "" {
			p.spec.Where = []api.LabelRule{{Key: "gpu-model", Op: "in", Values: strings.Split(spec, "|")}}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// openb is the share of the devices that was given out, in per cent, for one seed.
func openb(folder, workload string, seed uint64) (float64, error) {
	nodes, err := openbNodes(folder)
	if err != nil {
		return 0, err
	}
	pods, err := openbPods(folder, workload)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, n := range nodes {
		total += 1000 * int64(len(n.GPUs))
	}
	var mix []schedule.Shape
	for i := range pods {
		if pods[i].milli > 0 {
			mix = append(mix, schedule.Shape{Bundle: pods[i].spec.Bundles[0], Where: pods[i].spec.Where, Weight: 1})
		}
	}
	c := newCluster(nodes)
	c.s.Mix = mix
	random := rand.New(rand.NewPCG(seed, 0))
	given := int64(0)
	for asked := int64(0); asked*100 < total*overAsk; {
		p := &pods[random.IntN(len(pods))]
		asked += p.milli
		c.submit(p.spec)
		for _, d := range c.decide(time.Unix(0, 0)) {
			if d.Bundles != nil {
				given += p.milli
			}
		}
		c.s.Pending = nil
	}
	return 100 * float64(given) / float64(total), nil
}
