package simulate

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
)

// What is wrong with a trace is told with its place and what to do; what can be read in
// one way only is read, and said.
func TestBadTraces(t *testing.T) {
	const head = "submit,duration,ranks,gpus\n"
	for _, c := range []struct {
		name, in, want string
		skip           bool
	}{
		{"nothing", "", "no header", false},
		{"only a header", head, "no jobs", false},
		{"an unknown header", "when,how long\n1,2\n", "no known trace", false},
		{"a misspelt wish", "submit,duration,gpu\n1,2,1\n", `unknown column "gpu"`, false},
		{"a column twice", "submit,duration,gpus,gpus\n1,2,1,1\n", "stands twice", false},
		{"a hole", head + "1,,1,1\n", "t.csv:2:3: duration is empty", false},
		{"a short row", head + "1,2,1,1\n5,6\n", "t.csv:3: 2 fields; the header names 4", false},
		{"a word for a number", head + "1,soon,1,1\n", `t.csv:2:3: duration: "soon" is no number`, false},
		{"a negative time", head + "-5,2,1,1\n", "t.csv:2:1: submit: \"-5\" is negative", false},
		{"no number at all", head + "NaN,2,1,1\n", "not finite", false},
		{"for ever", head + "1,1e300,1,1\n", "more than 100 years", false},
		{"half a rank", head + "1,2,1.5,1\n", `ranks: "1.5" is no whole number`, false},
		{"no rank", head + "1,2,0,1\n", "ranks: 0 is less than 1", false},
		{"too many ranks", head + "1,2,999999999999,1\n", "more than", false},
		{"overflow", head + "1,2,99999999999999999999,1\n", "ranks", false},
		{"an open quote", head + "1,\"2,1,1\n", "quote", false},
		{"a name twice", "submit,duration,name\n1,2,a\n2,2,a\n", `t.csv:3:1: the name "a" is that of line 2`, false},
		{"a deadline before the submission", "job_id,submit_time,ddl,num_gpu,duration\na,100,50,1,5\n", "before the submission", false},
		{"sizes without the one asked for", "submit,duration,ranks,min_ranks,max_ranks\n1,2,8,1,4\n", "t.csv:2: ranks: 8 is not one of the allowed sizes", false},
		{"sizes the wrong way round", "submit,duration,ranks,min_ranks,max_ranks\n1,2,4,8,4\n", "t.csv:2: sizes: min 8 and max 4", false},
		{"a multiple of nothing", "submit,duration,ranks,multiple\n1,2,4,2\n", "t.csv:2:7: multiple: without min_ranks", false},
		{"a word for a size", "submit,duration,ranks,sizes\n1,2,4,4|many\n", `t.csv:2:7: sizes: "many" is no number of ranks`, false},
		{"two ways to say sizes", "submit,duration,ranks,sizes,max_ranks\n1,2,4,4|8,8\n", "not both", false},
		{"sizes that do not fill nodes", "submit,duration,ranks,sizes,per_node\n1,2,4,4|6,4\n", "sizes: with 4 ranks on each node", false},
		{"sizes in a line", `{"submit":1,"duration":2,"ranks":3,"sizes":{"set":[2,4]}}` + "\n", "ranks: 3 is not one of the allowed sizes", false},
		{"no such strategy", "submit,duration,strategy\n1,2,HEAP\n", "none of PACK", false},
		{"no date", "timestamp,duration,num_gpus,cluster\nyesterday,5,1,x\n", "is no time", false},
		{"shapes without times", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n", "no times", false},
		{"applications without durations", "name,time,application,num_replicas,batch_size\na,1,bert,2,3\n", "no durations", false},
		{"everything bad and skipped", head + "x,2,1,1\n", "no jobs", true},
		{"not JSON", "{\"submit\": 1, \"duration\": }\n", "t.csv:1:27", false},
		{"two objects in a line", `{"submit":1,"duration":2,"resources":{"gpus":1}} {}` + "\n", "more than one object", false},
		{"an unknown field", `{"submit":1,"duration":2,"gpuz":1}` + "\n", "gpuz", false},
		{"no duration", `{"submit":1}` + "\n", `"duration" is missing`, false},
		{"no submission", "\n" + `{"duration":1}` + "\n", `t.csv:2: "submit" is missing`, false},
		{"less than nothing", `{"submit":1,"duration":2,"ranks":-3}` + "\n", "less than nothing", false},
		{"nobody", `{"submit":1,"duration":2,"ranks":0}` + "\n", "ranks cannot be 0: leave it out for the default, 1", false},
		{"a date as deadline", `{"submit":1,"duration":2,"deadline":"2026-01-01T00:00:00Z"}` + "\n", "deadlineAfter", false},
		{"a share above one", `{"submit":1,"duration":2,"resources":{"share":1500}}` + "\n", "share", false},
		{"what is not simulated", `{"submit":1,"duration":2,"spareNodes":1}` + "\n", "not simulated", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := ReadTrace("t.csv", strings.NewReader(c.in), ReadOptions{SkipBad: c.skip})
			if err == nil {
				t.Fatalf("taken: %+v", tr.Jobs)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, want %q in it", err, c.want)
			}
		})
	}
}

// Blank lines, CR LF, a byte order mark and rows out of order are read and told.
func TestUntidyTraces(t *testing.T) {
	in := "\xef\xbb\xbfsubmit,duration,gpus\r\n\r\n7,1h,1\r\n   \r\n0.25,90,2\r\n7,5,3\r\nx,1,1\r\n"
	tr, err := ReadTrace("t.csv", strings.NewReader(in), ReadOptions{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Jobs) != 3 || tr.Jobs[0].Submit != 250*time.Millisecond || tr.Jobs[1].Takes != time.Hour || tr.Jobs[2].GPUs() != 3 {
		t.Fatalf("%+v", tr.Jobs)
	}
	told := strings.Join(tr.Notes, "\n")
	for _, want := range []string{"byte order mark", "2 blank lines were skipped", "CR LF", "1 row that cannot be read was skipped", "were sorted"} {
		if !strings.Contains(told, want) {
			t.Errorf("not told: %s; told:\n%s", want, told)
		}
	}
}

// Each public format is read as its publisher means it.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name, in, format string
		check            func(j []Job) bool
	}{
		{"philly", "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,4,264,vc\n2017-10-09 07:01:50,5,1,5,vc\n", "philly", func(j []Job) bool {
			return j[1].Submit == 5*time.Second && j[1].Takes == 66*time.Second && j[1].GPUs() == 4 && j[0].Spec.Tenant == "vc"
		}},
		{"elasticflow", "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,duration,iteration\n0,10,1,vgg16,100,256,4,90,80,1\n", "elasticflow", func(j []Job) bool {
			return j[0].Deadline == 100*time.Second && j[0].Takes == 80*time.Second && j[0].GPUs() == 4
		}},
		{"kalos", "job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,gpu_workers,ps,gpu_per_worker\n0,3.0,208,0.5,0.25,8,0,8.0\n", "kalos", func(j []Job) bool {
			return j[0].Takes == 104*time.Second && j[0].Spec.Ranks == 8 && j[0].GPUs() == 64
		}},
		{"pods", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n" +
			"a,6000,12288,1,460,V100|T4,LS,Running,10,100,20\nb,1,1,2,1000,,BE,Pending,5,9,\nc,1,1,0,0,,BE,Pending,5,9,\n", "openb pods", func(j []Job) bool {
			return j[2].Spec.Resources.Share == 460 && j[2].Takes == 80*time.Second && len(j[2].Spec.Where) == 1 && j[0].GPUs() == 2 && j[0].Takes == 4*time.Second && j[1].GPUs() == 0
		}},
		{"lines", `{"submit":"1m","duration":90,"name":"a","ranks":4,"resources":{"gpus":2},"tenant":"x","level":"rack","deadlineAfter":100}` + "\n", "troupe lines", func(j []Job) bool {
			return j[0].Submit == time.Minute && j[0].GPUs() == 8 && j[0].Deadline == 160*time.Second && j[0].Spec.Level == "rack"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := read(t, "t", strings.NewReader(c.in), ReadOptions{})
			if tr.Format != c.format || !c.check(tr.Jobs) {
				t.Errorf("format %s, jobs %+v", tr.Format, tr.Jobs)
			}
		})
	}
	f, err := os.Open("testdata/tiresias.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tr := read(t, "tiresias.csv", f, ReadOptions{}); tr.Format != "tiresias" || len(tr.Jobs) != 60 {
		t.Errorf("%s, %d jobs", tr.Format, len(tr.Jobs))
	}
}

// Jobs that add up to more than can be counted are refused by every rule, and so are
// arrivals that are drawn out so far; none of them turns into a time before the trace.
func TestTracesWithoutEnd(t *testing.T) {
	rows := make([]string, 4)
	for i := range rows {
		rows[i] = fmt.Sprintf("0 %d 8", int64(longest/time.Second))
	}
	tr, c := jobs(t, rows...), eights(1)
	_, sim := Run(t.Context(), c, tr, Options{})
	_, plain := Plain(t.Context(), schedule.PlainFIFO, tr, 8000, nil)
	_, due := Due(t.Context(), DueElastic, tr, 8000, DueOptions{Speedup: 1.8, Doublings: 2}, nil)
	for name, err := range map[string]error{"the scheduler": sim, "fifo": plain, "elastic": due} {
		if err == nil || !strings.Contains(err.Error(), "for more than 120 years") {
			t.Errorf("%s: %v", name, err)
		}
	}
	tr.Estimate(10, 1)
	for i := range tr.Jobs {
		if e := tr.Jobs[i].Spec.Estimate.D(); e < longest/10 || e > longest {
			t.Errorf("estimated to take %s", e)
		}
	}
	_, err := ReadTrace("t.csv", strings.NewReader("submit,duration,gpus\n0,1,1\n5,1,1\n"), ReadOptions{Faster: 1e-300})
	if err == nil || !strings.Contains(err.Error(), "t.csv:3: arriving 1e-300 times as fast") {
		t.Errorf("%v", err)
	}
}

// No input makes the reader panic or take a job that the scheduler would refuse.
func FuzzReadTrace(f *testing.F) {
	f.Add("submit,duration,ranks,gpus\n1,2,3,4\n")
	f.Add("timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,66.0,1,x\n")
	f.Add(`{"submit":1,"duration":2,"resources":{"gpus":1}}`)
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,1,1,1,500,1,2,1\n")
	f.Fuzz(func(t *testing.T, in string) {
		tr, err := ReadTrace("f", strings.NewReader(in), ReadOptions{})
		if err != nil {
			return
		}
		for i := range tr.Jobs {
			j := &tr.Jobs[i]
			if j.Takes < 0 || j.Submit < 0 || j.Milli() < 0 || i > 0 && j.Submit < tr.Jobs[i-1].Submit {
				t.Errorf("%+v", j)
			}
		}
	})
}
