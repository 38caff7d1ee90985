package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func TestDidYouMean(t *testing.T) {
	known := []string{"job", "list", "logs", "stop", "pg", "ps", "head", "help"}
	for word, want := range map[string]string{
		"jbo": "job", "lsit": "list", "hepl": "help", "log": "logs", "sto": "stop", "quantum": "", "x": "", "pq": "pg",
	} {
		got := strings.TrimSuffix(strings.TrimPrefix(didYouMean(word, known), "; did you mean "), "?")
		if got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// The distance is a metric as far as anybody can see: zero for equal words alone, the
// same both ways, and never more than the longer word.
func TestDistance(t *testing.T) {
	word := rapid.StringMatching(`[a-c]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b)
		if (d == 0) != (a == b) || d != distance(b, a) || d > max(len(a), len(b)) {
			t.Fatalf("%q to %q is %d", a, b, d)
		}
	})
	if distance("hepl", "help") != 1 {
		t.Error("swapped neighbours are one slip, not two")
	}
}

func TestParseRanks(t *testing.T) {
	for s, want := range map[string][]int64{"": {0, 1, 2, 3}, "0": {0}, "0,2-3": {0, 2, 3}, "3-3": {3}} {
		got, err := parseRanks(s, 4)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"4", "-1", "2-1", "a", "0,", "0-9", "9223372036854775808", "0--1"} {
		if got, err := parseRanks(s, 4); err == nil {
			t.Errorf("%q gave %v", s, got)
		}
	}
}

func TestNameOf(t *testing.T) {
	for want, command := range map[string][]string{
		"train":     {"python3", "-u", "/x/train.py", "--a=b.py"},
		"digits":    {"/usr/bin/python", "-X", "dev", "digits.py"},
		"pkg-main":  {"python", "-m", "pkg.main"},
		"sh":        {"/bin/sh", "-c", "x"},
		"my-script": {"./My_Script"},
		"job":       {"./___"},
	} {
		if got := nameOf(command); got != want {
			t.Errorf("%v: %q, want %q", command, got, want)
		}
	}
	if n := nameOf([]string{strings.Repeat("x", 500)}); len(n) > 40 {
		t.Errorf("%d characters", len(n))
	}
}

func TestShellText(t *testing.T) {
	if got := shellText([]string{"sh", "-c", "echo 'a' $B", ""}); got != `sh -c 'echo '\''a'\'' $B' ''` {
		t.Error(got)
	}
}

// Nothing that a rank or a name holds steers the terminal of who reads it.
func TestCleanedTextCannotSteer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text") + "\x1b[2J\r\x00\u202e\x9b"
		for _, out := range []string{clean(s), cleanTTY(s), cleanLines(s)} {
			if strings.ContainsAny(out, "\x1b\r\x00\u202e\u009b") {
				t.Fatalf("%q became %q", s, out)
			}
		}
	})
	if got := cleanTTY("\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07"); got != "\x1b[31mred\x1b[0m?[2J?]0;title?" {
		t.Errorf("%q", got)
	}
}

// Lines arrive whole and in order however the bytes are cut; of a redrawn line the last
// frame is kept.
func TestLineWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOf(rapid.StringMatching(`[a-z]{0,9}`)).Draw(t, "lines")
		text := strings.Join(append(lines, ""), "\n")
		var out, raw bytes.Buffer
		w := &lineWriter{a: &app{out: &out}, prefix: "[0] ", out: &out, raw: &raw}
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			w.write([]byte(rest[:n]))
			rest = rest[n:]
		}
		w.flush()
		var want strings.Builder
		for _, l := range lines {
			want.WriteString("[0] " + l + "\n")
		}
		if out.String() != want.String() || raw.String() != text {
			t.Fatalf("%q became %q, raw %q", text, out.String(), raw.String())
		}
	})
	var out bytes.Buffer
	w := &lineWriter{a: &app{out: &out}, out: &out}
	w.write([]byte("10%\r50%\r100%\r\nunfinished"))
	w.flush()
	if out.String() != "100%\nunfinished\n" {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	w = &lineWriter{a: &app{out: &out}, prefix: prefixOf(logOptions{prefix: "json"}, 3, 1, "stderr"), json: true, out: &out}
	w.write([]byte("a \"b\" <\xff>\n"))
	var line struct {
		Attempt, Rank int64
		Stream, Line  string
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Rank != 3 || line.Attempt != 1 || line.Stream != "stderr" || line.Line != "a \"b\" <\ufffd>" {
		t.Errorf("%q: %+v %v", out.String(), line, err)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 3 * time.Hour: "3h", 72 * time.Hour: "3d"} {
		if got := age(d); got != want {
			t.Errorf("%s: %q", d, got)
		}
	}
}

// A table on a screen is cut to it; one for a program is never.
func TestFitted(t *testing.T) {
	for _, c := range []struct {
		line string
		most int
		want string
	}{{"short", 0, "short"}, {"short", 5, "short"}, {"shorts", 5, "shor…"}, {"größer", 4, "grö…"}, {"x", 1, "x"}, {"xy", 1, "…"}} {
		if got := fitted(c.line, c.most); got != c.want {
			t.Errorf("%q in %d: %q", c.line, c.most, got)
		}
	}
}

func TestSaysAll(t *testing.T) {
	const text = "quota: tenant nlp guarantees 8 GPUs, held by a-1, b-2 on gpu-1"
	for list, want := range map[string]bool{
		"a-1, b-2": true, "a-1, c-3": false, "tenant nlp": true, "node gpu-1": true, "node gpu-7": false, "8 GPUs": true, "9 GPUs": false,
		"troupe queue resume nlp": false,
	} {
		if got := saysAll(text, list); got != want {
			t.Errorf("%q: %t", list, got)
		}
	}
}

func TestWantsJSON(t *testing.T) {
	for line, want := range map[string]bool{
		"job list -o json": true, "job list --bad --output=jsonl": true, "-ojson x": true, "-o=json": true,
		"job list": false, "run -- prog -o json": false, "job list -o table": false, "-o": false,
	} {
		if got := wantsJSON(strings.Fields(line)); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

// Every error leads to one exit code of the table, with words for the user.
func TestExitCodes(t *testing.T) {
	a := &app{format: "table"}
	for _, c := range []struct {
		err  error
		exit int
	}{
		{syscall.ENOSPC, api.ExitOS},
		{syscall.EROFS, api.ExitOS},
		{syscall.EADDRINUSE, api.ExitConflict},
		{syscall.EMFILE, api.ExitOS},
		{errors.New("what"), api.ExitDefect},
		{&api.Problem{Status: 404, Title: "x", Code: "y"}, api.ExitNotFound},
		{&api.Problem{Status: 403, Title: "x", Code: "y"}, api.ExitDenied},
		{&api.Problem{Status: 503, Title: "x", Code: "y"}, api.ExitUnreachable},
		{usage("x"), api.ExitUsage},
		{malformed("", "x"), api.ExitBadInput},
	} {
		if p := a.problemOf(c.err); p.Exit != c.exit || p.Detail == "" && p.Title == "" {
			t.Errorf("%v: %+v, want exit %d", c.err, p, c.exit)
		}
	}
	for code := range map[int]bool{0: true, 1: true, 64: true, 65: true, 66: true, 69: true, 70: true, 71: true, 73: true, 74: true, 75: true, 77: true, 78: true, 130: true} {
		if !strings.Contains(exitCodesText, "\n  "+strings.TrimSpace(string(itoa(code)))+" ") {
			t.Errorf("help exit-codes lacks %d", code)
		}
	}
}

func itoa(n int) []byte { b, _ := json.Marshal(n); return b }

// A job file of any bytes is read or refused, never worse; what is refused is refused
// with the malformed code.
func FuzzJobFile(f *testing.F) {
	for _, s := range []string{"name: a\ncommand: [x]\n", "a: &a [*a]", "{", "\x00", "env: {a: 1.0}\nranks: 4", "? [a]\n: b", "--- \n...\n---\n", "name: !!binary aGk=", "<<: {name: x}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s jobFile
		err := decodeJob("f.yaml", data, &s)
		var x *exitError
		if err != nil && (!errors.As(err, &x) || x.code != api.ExitBadInput || !strings.HasPrefix(x.text, "f.yaml")) {
			t.Fatalf("%v", err)
		}
	})
}

// What a job may wish stands in its file by the names of the API.
func TestWishesInAJobFile(t *testing.T) {
	var s jobFile
	err := decodeJob("f.yaml", []byte("name: a\nlevel: rack\nlevelWait: 10m\ndeadline: 2030-05-01T12:00:00Z\nuses: {nfs: 80}\nwhere:\n- {key: zone, op: in, values: [a, b]}\ntimeLimit: 2h\npreemptible: true\ndata: [faces]\n"), &s)
	if err != nil || s.Level != "rack" || s.LevelWait == nil || s.Deadline.Year() != 2030 || s.Uses[0].N != 80 || s.Where[0].Values[1] != "b" || s.TimeLimit.D() != 2*time.Hour || !s.Preemptible || s.Data[0] != "faces" {
		t.Errorf("%+v, %v", s.JobSpec, err)
	}
}

func TestParseAmounts(t *testing.T) {
	for word, want := range map[string]string{
		"gpu=8": "gpu=8000", "gpu=1.5": "gpu=1500", "gpu:H200=0.005": "gpu:H200=5", "cpu=2": "cpu=2000", "memory=1KiB": "memory=1024", "nfs=350": "nfs=350", "nfs=1MiB": "nfs=1048576",
		"gpu=9223372036854775807": "", "gpu=0.0001": "", "gpu=-1": "", "gpu=1.": "", "gpu=NaN": "", "gpu=1e3": "", "cpu=-1": "", "=1": "", "gpu": "", "gpu=": "", "nfs=1.5": "", "nfs=-1": "",
	} {
		got := ""
		if list, err := parseAmounts("limit", []string{word}); err == nil {
			got = fmt.Sprintf("%s=%d", list[0].Of, list[0].N)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
	if _, err := parseAmounts("limit", []string{"gpu=1", "gpu=2"}); err == nil {
		t.Error("one quantity twice")
	}
}
