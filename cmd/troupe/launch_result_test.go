package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// The block is torchrun's to the letter; only who is the root cause is Troupe's word.
func TestFailureSummary(t *testing.T) {
	at := time.Date(2026, 11, 30, 20, 15, 1, 0, time.Local)
	end := func(code int64, signal, message, file string, byUs bool) *api.RankEnd {
		return &api.RankEnd{Code: code, Signal: signal, PID: 100 + code, At: at, Message: message, ErrorFile: file, ByTroupe: byUs}
	}
	j := api.Job{State: api.Failed, Attempts: []api.Attempt{{Number: 1, Ended: at.Add(time.Second), Ranks: []api.Rank{
		{Rank: 0, Node: "a", End: end(143, "SIGTERM", "killed by signal 15 (SIGTERM)", "", true)},
		{Rank: 1, LocalRank: 1, Node: "a", End: end(1, "", "RuntimeError: connection closed by peer", "/l/1/error.json", false)},
		{Rank: 2, Node: "b", End: end(139, "SIGSEGV", "killed by signal 11 (SIGSEGV)", "", false)},
		{Rank: 3, LocalRank: 1, Node: "b", End: end(0, "", "", "", false)},
		{Rank: 4, LocalRank: 2, Node: "b", End: end(7, "", "exit code 7", "", false)},
	}, Failure: &api.Failure{Rank: 2, Node: "b", ExitCode: 139, Signal: "SIGSEGV", Message: "killed by signal 11 (SIGSEGV)"}}}}
	want := `============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[0]:
  time      : 2026-11-30_20:15:01
  host      : a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: /l/1/error.json
  traceback : RuntimeError: connection closed by peer
[2]:
  time      : 2026-11-30_20:15:01
  host      : b
  rank      : 4 (local_rank: 2)
  exitcode  : 7 (pid: 107)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[1]:
  time      : 2026-11-30_20:15:01
  host      : b
  rank      : 2 (local_rank: 0)
  exitcode  : -11 (pid: 239)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 239
============================================================`
	if got := failureSummary("train.py", j); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	j.Attempts[0].Failure = &api.Failure{Rank: -1, Node: "b", ExitCode: 127, Message: "could not start on b: no folder"}
	j.Attempts[0].Ranks = nil
	want = `============================================================
x FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_20:15:02
  host      : b
  rank      : <N/A> (local_rank: <N/A>)
  exitcode  : 127 (pid: <N/A>)
  error_file: <N/A>
  traceback : could not start on b: no folder
============================================================`
	got := failureSummary("x", j)
	if got != trimBars(want, 45) {
		t.Errorf("got\n%s\nwant\n%s", got, trimBars(want, 45))
	}
	if s := failureSummary("x", api.Job{State: api.Stopped}); s != "" {
		t.Errorf("nothing failed, and yet %q", s)
	}
}

// trimBars shortens the lines of a block to its width.
func trimBars(s string, n int) string {
	var out []byte
	run := 0
	for i := range len(s) {
		if c := s[i]; c == '=' || c == '-' {
			if run++; run > n {
				continue
			}
		} else {
			run = 0
		}
		out = append(out, s[i])
	}
	return string(out)
}

func TestCopyRoot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "own.json")
	for in, want := range map[string]string{
		`{"message":{"message":"E: x","extraInfo":{"timestamp":"1"}}}`: `{"message":{"errorCode":-11,"extraInfo":{"timestamp":"1"},"message":"E: x"}}`,
		`{"message":"short","timestamp":1}`:                            `{"message":"short","timestamp":1}`,
		`{"other":1}`:                                                  `{"other":1}`,
		`{"message":`:                                                  "",
		`[1]`:                                                          "",
		`null`:                                                         "",
		"\xff":                                                         "",
	} {
		_ = os.Remove(path)
		err := copyRoot(path, []byte(in), -11)
		got, _ := os.ReadFile(path)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s became %s, %v", in, got, err)
		}
	}
}
