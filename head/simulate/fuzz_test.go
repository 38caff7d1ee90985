package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// seeds of clusters: good ones with a bit of everything, and one of each kind of bad.
var clusterSeeds = []string{
	`{"nodes":[{"count":4,"gpus":8,"every":{"rack":2}}],"levels":[{"name":"rack","label":"rack"}],"queues":[{"name":"a","guaranteed":{"gpu":8000}}],` +
		`"reservations":[{"name":"r","start":"2000-01-01T01:00:00Z","end":"2000-01-01T02:00:00Z","maintenance":"fans","count":1}],` +
		`"capacities":[{"name":"nfs","total":10}],"policy":{"order":"fifo","planned":3,"protect":"1m"},"jobs":{"cpu":1000,"level":"rack","levelWait":"1m"},` +
		`"failures":{"node":{"mtbf":"1h","repair":"5m"},"gpu":{"mtbf":"2h","shape":0.7,"repair":"1m"},"rank":{"mtbf":"30m"}},` +
		`"checkpoints":{"interval":"10m","save":"5s"},"start":"10s"}`,
	`{"nodes":[{"count":2,"name":"a-%","gpus":1,"model":"H200","gpuMemory":"141GiB","cpu":64000,"memory":"1TiB","pool":"big","labels":{"zone":"z"}}]}`,
	`{"nodes":[{"count":0}]}`, `{"nodes":[{"count":-1,"gpus":1}]}`, `{"nodes":[{"count":99999999999999999999,"gpus":1}]}`, `{"nodes":[{"count":9223372036854775807,"gpus":64}]}`,
	`{"nodes":[{"count":200000,"gpus":64},{"count":9223372036854775807}]}`, `{"nodes":[{"count":1,"gpus":65}]}`, `{"nodes":[]}`, `{}`, ``, `null`, `[]`, `{"nodes":[null]}`,
	`{"nodes":[{"count":1,"name":"%%"}]}`, `{"nodes":[{"count":1,"name":"a"},{"count":1,"name":"a"}]}`, `{"nodes":[{"count":1,"every":{"":1}}]}`, `{"nodes":[{"count":1,"every":{"rack":0}}]}`,
	`{"nodes":[{"count":1,"labels":{"rack":"x"},"every":{"rack":1}}]}`, `{"nodes":[{"count":1}],"levels":[{"name":"rack","label":"rack"}]}`,
	`{"nodes":[{"count":1,"labels":{"r":"x"}}],"levels":[{"name":"a","label":"r"},{"name":"b","label":"r"}]}`,
	`{"nodes":[{"count":1,"gpus":1}],"queues":[{"name":"a","parent":"b","tenant":true},{"name":"b","parent":"a","tenant":true}]}`,
	`{"nodes":[{"count":1,"gpus":1}],"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":1}},{"name":"b","parent":"a","guaranteed":{"gpu":9223372036854775807}}]}`,
	`{"nodes":[{"count":1,"gpus":1}],"reservations":[{"name":"r","start":"0001-01-01T00:00:00Z","end":"9999-12-31T00:00:00Z","queue":"default","count":9}]}`,
	`{"nodes":[{"count":1,"gpus":1}],"failures":{"rank":{"mtbf":"1ns"},"node":{"mtbf":"1ns","repair":"292y"}}}`,
	`{"nodes":[{"count":1,"gpus":1}],"checkpoints":{"interval":"1ns","save":"2562047h"},"start":"2562047h"}`,
	`{"nodes":[{"count":1,"gpus":1}],"jobs":{"where":[{"key":"","op":"?","values":[]}],"uses":{"x":-1},"doublings":11,"strategy":"HEAP","tenant":"nobody"}}`,
	`{"nodes":[{"count":1,"gpus":1}],"policy":{"planned":-1,"planAge":"1h","linkFresh":"9999999h"}}`,
	`{"nodes":[{"count":1}]} {}`, `{"nodes":[{"count":1}],"nodez":1}`,
}

// traceSeeds are jobs to run there.
var traceSeeds = []string{
	"submit,duration,ranks,gpus\n0,60,1,1\n5,3600,8,1\n5,1,1,0\n",
	"submit,duration,ranks,gpus,queue,priority,level,level_wait,whole_nodes,preemptible,estimate,time_limit,deadline,max_wait,strategy,per_node,min_ranks,max_ranks\n" +
		"0,600,4,1,a,5,rack,60,false,true,500,700,900,60,SPREAD,2,2,8\n1,60,2,8,,0,,,true,false,,,,,PACK,,,\n",
	`{"submit":0,"duration":"876000h","ranks":2,"resources":{"gpus":1},"reservation":"r","uses":{"nfs":3}}` + "\n" + `{"submit":"876000h","duration":"876000h","ranks":1,"deadlineAfter":"876000h","resources":{"share":1000}}`,
	"timestamp,duration,num_gpus,cluster\n2200-12-31 07:01:55,3153600000,4,a\n1970-01-01 00:00:00,1,1,a\n",
}

// smallEnough: a run is about what the files say, not about how much there is of it.
func smallEnough(c *Cluster, tr *Trace) bool {
	var nodes, ranks int64
	for i := range c.Nodes {
		nodes += c.Nodes[i].Count
	}
	for i := range tr.Jobs {
		ranks += tr.Jobs[i].Spec.Ranks
	}
	return nodes <= 16 && c.GPUs() <= 64 && len(tr.Jobs) <= 12 && ranks <= 256
}

// enough is a time in which everything that a cluster does again and again was done often.
func enough(c *Cluster) time.Duration {
	until := time.Duration(0)
	often := func(d time.Duration) {
		if d > 0 && (until == 0 || 300*d < until) {
			until = 300 * min(d, longest/300)
		}
	}
	often(c.Failures.Node.MTBF.D())
	often(c.Failures.GPU.MTBF.D())
	often(c.Failures.Rank.MTBF.D())
	if c.Checkpoints != nil {
		often(c.Checkpoints.Interval.D())
	}
	return until
}

// Whatever the two files say, they are refused with a place, or played: never a panic, never
// a time before another, never a wait without a reason.
func FuzzSimulate(f *testing.F) {
	for _, c := range clusterSeeds {
		f.Add(c, traceSeeds[0])
	}
	for _, tr := range traceSeeds {
		f.Add(clusterSeeds[0], tr)
		f.Add(clusterSeeds[1], tr)
	}
	f.Fuzz(func(t *testing.T, cluster, trace string) {
		c, err := ParseCluster("cluster.json", []byte(cluster))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "cluster.json: ") {
				t.Fatalf("does not say where: %v", err)
			}
			return
		}
		tr, err := ReadTrace("trace", strings.NewReader(trace), ReadOptions{Defaults: c.Jobs})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "trace") {
				t.Fatalf("does not say where: %v", err)
			}
			return
		}
		if !smallEnough(c, tr) {
			return
		}
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		defer stop()
		r, err := Run(ctx, c, tr, Options{Seed: 1, Check: true, Until: enough(c)})
		if ctx.Err() != nil {
			t.Fatalf("does not come to an end")
		}
		if _, ok := errors.AsType[ClusterError](err); ok {
			return
		}
		if err != nil && strings.Contains(err.Error(), "shorten them") {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		checkOutcomes(t, r)
	})
}
