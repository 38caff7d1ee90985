package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// tree is the content of the log folder of the one launch that used it, by path.
func (l *launcher) tree(name string) map[string]string {
	l.t.Helper()
	runs, err := os.ReadDir(filepath.Join(l.dir, name))
	if err != nil || len(runs) != 1 {
		l.t.Fatalf("%v %v", runs, err)
	}
	root := filepath.Join(l.dir, name, runs[0].Name())
	out := map[string]string{"": runs[0].Name()}
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			rel, _ := filepath.Rel(root, path)
			out[rel] = string(b)
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// Under run the same options shape the output the same way, beside run's own prefix.
func TestRunShapesOutput(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.up()
	talk := l.write("talk.sh", "echo out $RANK; echo err $RANK >&2\n")
	r := l.want(0, "run", "--ranks", "2", "--log-dir", "logs", "-r", "0:1", "-t0:2,1:1", "--role=trainer", "--", "sh", talk)
	tree := l.tree("logs")
	if r.out != "[trainer1]:out 1\n" || !strings.Contains(r.errout, "[trainer0]:err 0\n") || !strings.Contains(r.errout, "[1] err 1\n") {
		t.Errorf("%v", r)
	}
	if !strings.HasPrefix(tree[""], "sh_") || tree["attempt_0/0/stdout.log"] != "out 0\n" || tree["attempt_0/0/stderr.log"] != "err 0\n" || tree["attempt_0/1/stdout.log"] != "out 1\n" {
		t.Errorf("%q", tree)
	}
	r = l.want(0, "run", "--ranks", "2", "-o", "json", "--local-ranks-filter", "1", "--", "sh", talk)
	if strings.Contains(r.out, "out 1") || !strings.Contains(r.errout, "out 1") || strings.Contains(r.errout, "out 0") {
		t.Errorf("%v", r)
	}
}

// records writes its error file in one of the forms that torch knows, or in none.
const records = `import json, os, sys, time
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, "says", os.environ["TORCHELASTIC_RUN_ID"], flush=True)
file = os.environ["TORCHELASTIC_ERROR_FILE"]
if rank == 1:
    form = sys.argv[1]
    if form == "long":
        data = {"message": {"message": "ValueError: bad shape", "extraInfo": {"py_callstack": "Traceback:\n  in train\nValueError: bad shape\n", "timestamp": "1700000000"}}}
        json.dump(data, open(file, "w"))
    elif form == "short":
        json.dump({"message": "short of breath", "timestamp": 1700000000}, open(file, "w"))
    elif form == "torn":
        open(file, "w").write('{"message": ')
    elif form == "link":
        os.symlink("/etc/hostname", file)
    sys.exit(3)
time.sleep(1000)
`

// Every attempt keeps its folder, with torchrun's names and the error file; the root
// cause's goes on to whoever launched the launcher, with the exit code.
func TestLaunchErrorFiles(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("records.py", records)
	own := filepath.Join(l.dir, "own.json")
	l.env = append(l.env, "TORCHELASTIC_ERROR_FILE="+own)
	r := l.launch("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "-r", "1", "--rdzv-id=my-id", script, "long")
	l.left(r)
	tree := l.tree("logs")
	if r.code != 1 || !strings.HasPrefix(tree[""], "my-id_") {
		t.Errorf("%v\n%v", r, tree)
	}
	for _, attempt := range []string{"0", "1"} {
		dir := "attempt_" + attempt + "/1/"
		if !strings.Contains(tree[dir+"error.json"], "bad shape") || !strings.Contains(tree[dir+"stdout.log"], "attempt "+attempt+" says my-id") {
			t.Errorf("attempt %s left %q and %q", attempt, tree[dir+"error.json"], tree[dir+"stdout.log"])
		}
	}
	for _, want := range []string{
		"attempt 0 failed: rank 1 on ", "records.py FAILED", "\n[0]:\n  time      : 20", "  exitcode  : 3 (pid: ", "/attempt_1/1/error.json\n",
		"  traceback : Traceback:\n    in train\n  ValueError: bad shape\n==", "Failures:\n  <NO_OTHER_FAILURES>\n--",
	} {
		if !strings.Contains(r.errout, want) {
			t.Errorf("the summary lacks %q: %v", want, r)
		}
	}
	var root struct {
		Message struct {
			Message   string
			ErrorCode int
		}
	}
	b, err := os.ReadFile(own)
	if err != nil || json.Unmarshal(b, &root) != nil || root.Message.ErrorCode != 3 || root.Message.Message != "ValueError: bad shape" {
		t.Errorf("the root cause's error file became %s, %v", b, err)
	}
}

// The other form is understood, what is no JSON or no file breaks nothing, and only a
// whole file goes on.
func TestLaunchOddErrorFiles(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("records.py", records)
	own := filepath.Join(l.dir, "own.json")
	l.env = append(l.env, "TORCHELASTIC_ERROR_FILE="+own)
	for form, want := range map[string]string{
		"short": "traceback : short of breath\n",
		"torn":  "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n",
		"link":  "error_file: <N/A>\n",
		"none":  "error_file: <N/A>\n",
	} {
		r := l.launch("--nproc-per-node=2", "--rdzv-id="+form, script, form)
		if r.code != 1 || !strings.Contains(r.errout, want) || !strings.Contains(r.errout, "exitcode  : 3 (pid: ") {
			t.Errorf("%s: %v", form, r)
		}
		b, err := os.ReadFile(own)
		if form == "short" != (err == nil) || form == "short" && string(b) != `{"message":"short of breath","timestamp":1700000000}` {
			t.Errorf("%s went on as %q, %v", form, b, err)
		}
		_ = os.Remove(own)
	}
	l.left(result{})
}

var failedRank = regexp.MustCompile(`(?m)^  rank      : (\d+) \(local_rank: (\d+)\)$`)

// Every rank that failed by itself stands under Failures, the root cause apart; what
// Troupe ended does not.
func TestLaunchSummaryOfSeveral(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("three.sh", `
case $RANK in
0) while ! test -e dead; do sleep 0.02; done; exit 5 ;;
1) trap 'touch dead' EXIT; kill -SEGV $$ ;;
2) exec sleep 1000 ;;
3) touch dead; kill -9 $$ ;;
esac
`)
	r := l.launch("--no-python", "--nproc-per-node=4", "sh", script)
	l.left(r)
	before, after, ok := strings.Cut(r.errout, "Root Cause (first observed failure):\n")
	root := failedRank.FindStringSubmatch(after)
	if r.code != 1 || !ok || root == nil || !strings.Contains(before, "sh FAILED\n") {
		t.Fatalf("%v", r)
	}
	if strings.Contains(r.errout, "rank      : 2 ") {
		t.Errorf("rank 2 only slept: %v", r)
	}
	for _, m := range failedRank.FindAllStringSubmatch(before, -1) {
		if m[1] == root[1] {
			t.Errorf("the root cause stands among the others: %v", r)
		}
	}
}

// Local ranks of two digits can be mapped, the prefix follows its template, and filtered
// lines go to a file of all ranks.
func TestLaunchShapesOutput(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	talk := l.write("talk.sh", "echo out $RANK; echo warn $RANK >&2; echo plain >&2\n")
	r := l.launch("--no-python", "--nproc-per-node=12", "--log-dir=logs", "-r", "11:1", "-t", "10:2,3:2", "--duplicate-stderr-filters=warn,none",
		"--log-line-prefix-template", "<${role_name}/$rank of $nobody $$> ", "--local-ranks-filter=3,10,11", "sh", talk)
	l.left(r)
	tree := l.tree("logs")
	lines := strings.Split(strings.TrimSpace(r.errout), "\n")
	sort.Strings(lines)
	// Of a stream that is not teed the lines of rank 11 come as they are.
	want := []string{"<default/10 of $nobody $> plain", "<default/10 of $nobody $> warn 10", "<default/3 of $nobody $> plain", "<default/3 of $nobody $> warn 3", "plain", "warn 11"}
	if r.code != 0 || !slices.Equal(lines, want) {
		t.Errorf("%v\n%q", r, lines)
	}
	filtered := strings.Split(strings.TrimSpace(tree["attempt_0/filtered_stderr.log"]), "\n")
	sort.Strings(filtered)
	if !slices.Equal(filtered, []string{"<default/10 of $nobody $> warn 10", "<default/3 of $nobody $> warn 3"}) {
		t.Errorf("filtered: %q", filtered)
	}
	if tree["attempt_0/11/stdout.log"] != "out 11\n" || tree["attempt_0/10/stderr.log"] != "warn 10\nplain\n" || tree["attempt_0/1/stdout.log"] != "" {
		t.Errorf("%v", tree)
	}
	if out := strings.Fields(r.out); !slices.Contains(out, "3") || slices.Contains(out, "11") || slices.Contains(out, "4") {
		t.Errorf("stdout: %q", r.out)
	}
}

// --virtual-local-rank gives every rank LOCAL_RANK 0 and its own entry of the caller's
// list of devices; the macro in its arguments still is the local rank.
func TestLaunchVirtualLocalRank(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.env = append(l.env, "CUDA_VISIBLE_DEVICES=6, 7")
	for _, args := range [][]string{
		{"launch", "--no-python", "--nproc-per-node=2", "--virtual-local-rank"},
		{"launch", "--no-python", "--nproc_per_node", "2", "--virtual_local"},
	} {
		r := l.program(troupeBin, append(args, "sh", "-c", "echo rank $RANK of $LOCAL_RANK sees $CUDA_VISIBLE_DEVICES as $0", "${local_rank}")...)
		l.left(r)
		for _, want := range []string{"rank 0 of 0 sees 6 as 0\n", "rank 1 of 0 sees 7 as 1\n"} {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%q is missing: %v", want, r)
			}
		}
	}
}
