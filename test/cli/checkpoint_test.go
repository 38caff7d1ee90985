package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// times and generations differ from run to run.
var varying = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z|saver-[a-z0-9]{5}`)

// steady makes an output comparable.
func steady(s string) string { return varying.ReplaceAllString(s, "~") }

// TestCheckpointCommands walks through what people do with the steps of a run, and what
// they are told when it cannot be.
func TestCheckpointCommands(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	python := h.python()
	script, err := filepath.Abs("testdata/saver.py")
	if err != nil {
		t.Fatal(err)
	}
	h.want(0, "up", "-d", "--port", "0", "--gpus", "none", "--name", "box")
	t.Cleanup(func() { h.troupe("down", "--yes") })
	run := []string{"run", "--name", "saver", "--ranks", "2", "--checkpoint-every", "5steps", "--env", "PYTHONPATH"}
	h.want(0, append(run, "--keep-last", "2", "--keep-every", "10", "--", python, script, "30")...)
	is := func(want string, args ...string) {
		t.Helper()
		if r := h.want(0, args...); steady(r.out) != want {
			t.Errorf("troupe %s printed\n%s\nwant\n%s", strings.Join(args, " "), steady(r.out), want)
		}
	}
	refused := func(code int, words string, args ...string) {
		t.Helper()
		if r := h.want(code, args...); !strings.Contains(r.errout, words) {
			t.Errorf("%v\nwant %q", r, words)
		}
	}
	list := steady(h.want(0, "checkpoint", "list", "saver").out)
	head, rows, _ := strings.Cut(list, "\n")
	if !regexp.MustCompile(`^saves every 5steps; a save stands still for .*, a restart takes not measured, 25000h expected between failures \(0 failures so far\); best: .*$`).MatchString(head) {
		t.Errorf("troupe checkpoint list begins with %q", head)
	}
	if want := `STEP  GEN  WORLD  SIZE  STATE      PINNED  CREATED               PARENT
  30  1.1      2  24 B  committed  -       ~      25
  25  1.1      2  24 B  committed  -       ~      20
  20  1.1      2  24 B  committed  -       ~      15
  10  1.1      2  24 B  committed  -       ~       5
`; rows != want {
		t.Errorf("troupe checkpoint list goes on with\n%s\nwant\n%s", rows, want)
	}

	// Pins.
	is("saver step 10: pinned\n", "ckpt", "pin", "saver", "10")
	refused(73, "step 10 of run saver is pinned", "checkpoint", "remove", "saver", "10", "-y")
	refused(73, "help: troupe checkpoint unpin saver 10", "checkpoint", "rm", "saver", "10", "-y")
	is("saver step 10: unpinned\n", "ckpt", "unpin", "saver", "10")

	// Removal says what is lost, and asks.
	refused(64, "remove step 30 of run saver (generation 1.1, committed, 24 B); it is the newest: the run would go on from step 25 and do 5 steps again", "checkpoint", "remove", "saver", "30")
	is("saver step 10: removed\n", "checkpoint", "remove", "saver", "10", "--yes")
	refused(66, "run saver has no step 10", "checkpoint", "remove", "saver", "10", "--yes")
	refused(64, `step "ten" is not a number`, "checkpoint", "get", "saver", "ten")
	refused(66, `no checkpoint "saver step 12"`, "checkpoint", "get", "saver", "12")
	refused(66, `no checkpoint "saver step 30" of generation 7`, "checkpoint", "get", "saver", "30", "--generation", "0.7")

	if out := h.want(0, "checkpoint", "get", "saver", "30").out; !strings.Contains(out, "rank-1/count.json") || !strings.Contains(out, "parent       step 25 of generation 1.1") ||
		!strings.Contains(out, "mesh         dp=2 tp=1") {
		t.Error(out)
	}
	is(`saver
└─ ~ attempt 0 (generation 1.1) from scratch
   ├─ step 20
   ├─ step 25
   └─ step 30
`, "checkpoint", "lineage", "saver")
	if out := h.want(0, "checkpoint", "lineage", "saver", "-o", "dot").out; !strings.HasPrefix(out, "digraph \"saver\" {\n") || !strings.Contains(out, `"1.1/25" -> "1.1/30";`) {
		t.Error(out)
	}
	refused(64, "unknown output format", "checkpoint", "list", "saver", "-o", "dot")

	// Out and in again.
	to := filepath.Join(h.dir, "out")
	if out := h.want(0, "checkpoint", "export", "saver", "25", to).out; !strings.Contains(out, "2 files, 24 B in "+to+" on box, verified") {
		t.Error(out)
	}
	if data, err := os.ReadFile(filepath.Join(to, "rank-0", "count.json")); err != nil || string(data) != `{"step": 25}` {
		t.Errorf("exported %q, %v", data, err)
	}
	refused(1, "is not empty; name another", "checkpoint", "export", "saver", "25", to)
	refused(64, "name the store", "checkpoint", "adopt", "saver")
	refused(65, "credentials do not belong into an address", "checkpoint", "adopt", "saver", "--store", "s3://bucket/x?endpoint=http://me:secret@host")
	refused(69, "no such file", "checkpoint", "adopt", "saver", filepath.Join(h.dir, "nothing"))
	is("saver: no garbage\n", "checkpoint", "gc", "saver")

	// Damage is named, quarantined at the next start, and stays visible.
	found, err := filepath.Glob(filepath.Join(h.dir, "state/troupe/*/head/store/saver/step-30-*/rank-1/count.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("files of step 30: %v, %v", found, err)
	}
	if err := os.WriteFile(found[0], []byte(`{"step": 31}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.want(1, "checkpoint", "verify", "saver", "30"); !strings.Contains(r.out, "saver step 30: DAMAGED") || !strings.Contains(r.out, "rank-1/count.json: digest") {
		t.Error(r)
	}
	refused(1, "rank-1/count.json: digest", "checkpoint", "export", "saver", "30", filepath.Join(h.dir, "bad"))
	h.want(0, append(run, "--", python, script, "29")...)
	if out := h.want(0, "checkpoint", "list", "saver", "-o", "wide").out; !strings.Contains(out, "quarantined") || !strings.Contains(out, "rank-1/count.json: digest") {
		t.Error(out)
	}
	if out := h.want(0, "checkpoint", "lineage", "saver").out; !strings.Contains(out, "step 30 (quarantined)") {
		t.Error(out)
	}

	// Another cluster that never heard of the run goes on from what stands.
	store := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(found[0]))))
	h.want(0, "down", "--yes")
	h.want(0, "up", "-d", "--port", "0", "--gpus", "none", "--name", "box", "--state", filepath.Join(h.dir, "second"))
	t.Cleanup(func() { h.troupe("down", "--yes", "--state", filepath.Join(h.dir, "second")) })
	if out := h.want(0, "checkpoint", "adopt", "saver", filepath.Join(store, "saver")).out; !strings.Contains(out, "adopted     step 25, verified\n") || !strings.Contains(out, "the next attempt goes on from step 25") {
		t.Error(out)
	}
	if out := h.want(0, append(run, "--checkpoint-store", store, "--", python, script, "40")...).out; !strings.Contains(out, "attempt 0 begins after step 25") ||
		strings.Count(out, "saved on {'dp': 2, 'tp': 1}") != 2 {
		t.Error(out)
	}
}
