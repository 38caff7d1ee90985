package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func TestErrorFileFormats(t *testing.T) {
	cases := []struct {
		name, in string
		want     failure
		ok       bool
	}{
		{"record", `{"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"tb","timestamp":"1700000001"}}}`, failure{"ValueError: x", "tb", "1700000001"}, true},
		{"record with code", `{"message":{"message":"E: x","errorCode":3,"extraInfo":{"py_callstack":"tb","timestamp":1700000001}}}`, failure{"E: x", "tb", "1700000001"}, true},
		{"text", `{"message":"it broke","timestamp":1700000002}`, failure{"it broke", "", "1700000002"}, true},
		{"time is no number", `{"message":"it broke","timestamp":{"a":1}}`, failure{"it broke", "", ""}, true},
		{"empty", ``, failure{}, false},
		{"half", `{"message":{"mess`, failure{}, false},
		{"list", `[1,2]`, failure{}, false},
		{"number", `{"message":7}`, failure{}, false},
		{"null", `{"message":null}`, failure{}, false},
		{"no text", `{"message":{}}`, failure{}, false},
	}
	for _, c := range cases {
		if got, ok := parseErrorFile([]byte(c.in)); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v %v, want %+v %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestLastTraceback(t *testing.T) {
	tb := "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n"
	cases := []struct {
		name, in, message string
	}{
		{"plain", tb + "ValueError: bad shape\n", "ValueError: bad shape"},
		{"dotted", tb + "torch.cuda.OutOfMemoryError: CUDA out of memory.\n", "torch.cuda.OutOfMemoryError: CUDA out of memory."},
		{"bare", tb + "KeyboardInterrupt\n", "KeyboardInterrupt"},
		{"chained", tb + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" + tb + "RuntimeError: second\n", "RuntimeError: second"},
		{"followed by a warning", tb + "OSError: x\n/usr/lib/x.py:1: UserWarning: leaked\n", "OSError: x"},
		{"prefixed lines", strings.ReplaceAll("[rank0]: "+strings.TrimSuffix(tb, "\n")+"\nOSError: y", "\n", "\n[rank0]: "), "OSError: y"},
		{"carriage returns", strings.ReplaceAll(tb+"OSError: z\n", "\n", "\r\n"), "OSError: z"},
		{"cut off", tb, ""},
		{"none", "hello\nworld\n", ""},
		{"binary", "\xff\xfe\x00" + tb + "E: \xff\n", "E: ?"},
	}
	for _, c := range cases {
		got := lastTraceback([]byte(c.in))
		if got.message != c.message {
			t.Errorf("%s: message %q, want %q", c.name, got.message, c.message)
		}
		if (got.traceback != "") != (c.message != "") {
			t.Errorf("%s: traceback %q", c.name, got.traceback)
		}
	}
}

func FuzzCause(f *testing.F) {
	f.Add([]byte("Traceback (most recent call last):\n  x\nE: y\n"))
	f.Add([]byte(`{"message":{"message":"E","extraInfo":{"py_callstack":"\u0000","timestamp":"1"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, _ := parseErrorFile(b)
		for _, got := range []failure{one, lastTraceback(b)} {
			if len(got.message) > maxMessage || len(got.traceback) > maxTraceback || !utf8.ValidString(got.message) || !utf8.ValidString(got.traceback) {
				t.Errorf("%+v", got)
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var req RankRequest
		err := ReadFrame(r, MaxRankFrame, &req)
		if err != nil && !errors.Is(err, ErrFrame) && !errors.Is(err, io.EOF) {
			t.Errorf("untyped error %v", err)
		}
		if err == nil {
			var again RankRequest
			var buf bytes.Buffer
			if err := WriteFrame(&buf, 1<<20, req); err != nil {
				t.Fatal(err)
			}
			if err := ReadFrame(&buf, 1<<20, &again); err != nil {
				t.Fatalf("what was written cannot be read: %v", err)
			}
		}
	})
}

func TestFramesKeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		limit := rapid.IntRange(1, 4096).Draw(t, "limit")
		var buf bytes.Buffer
		err := WriteFrame(&buf, limit, text)
		if err != nil {
			if !errors.Is(err, ErrFrameSize) {
				t.Fatalf("untyped error %v", err)
			}
			if buf.Len() != 0 {
				t.Fatal("half a frame was written")
			}
			return
		}
		if buf.Len() > limit+4 {
			t.Fatalf("%d bytes of at most %d", buf.Len(), limit)
		}
		var got string
		if err := ReadFrame(&buf, limit, &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func TestHeadOfOutputIsFreed(t *testing.T) {
	above, tail := freeAbove, keepTail
	t.Cleanup(func() { freeAbove, keepTail = above, tail })
	freeAbove, keepTail = 1<<20, 256<<10
	path := filepath.Join(t.TempDir(), "stdout.log")
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	before := blocks()
	to, err := freeHead(path, 0)
	if err != nil || to != int64(len(data))-keepTail {
		t.Fatalf("freed up to %d: %v", to, err)
	}
	got, err := os.ReadFile(path)
	if err != nil || len(got) != len(data) {
		t.Fatalf("%d bytes, want %d: %v", len(got), len(data), err)
	}
	if !bytes.Equal(got[to:], data[to:]) {
		t.Error("the tail changed")
	}
	if after := blocks(); after >= before {
		t.Skipf("this file system does not punch holes (%d bytes before, %d after)", before, after)
	}
	if got[0] != 0 || got[to-1] != 0 {
		t.Error("the head was not freed")
	}
	if again, err := freeHead(path, to); again != to || err != nil {
		t.Errorf("freed again up to %d: %v", again, err)
	}
}

// A lease: only the newest renewal counts, nothing runs past its time.
func TestLeaseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l lease
		now := time.Hour
		var newest time.Duration
		for range rapid.IntRange(1, 10).Draw(t, "renewals") {
			sent := now - time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "age"))
			d := time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "lease"))
			class := rapid.SampledFrom([]wire.Class{wire.ClassFast, wire.ClassStrict}).Draw(t, "class")
			before := l
			l.renew(&AgentMessage{SentAt: int64(sent), Lease: unit.Duration(d), Orphan: unit.Duration(2 * d), Class: class}, now)
			if sent < newest {
				if l != before {
					t.Fatal("an old renewal changed the lease")
				}
				continue
			}
			newest = sent
			if l.end != sent+d || l.orphan != sent+2*d {
				t.Fatalf("%+v after a renewal of %v at %v", l, d, sent)
			}
			if !l.valid(l.end-1) || l.valid(l.end) {
				t.Fatal("valid at the wrong time")
			}
			limit := l.orphan
			if class == wire.ClassStrict {
				limit = l.end
			}
			if l.over(limit-1) != "" || l.over(limit) == "" {
				t.Fatalf("over at the wrong time: %+v", l)
			}
			if w := l.deadline(limit - 1); w > time.Nanosecond {
				t.Fatalf("looks again after %v", w)
			}
		}
	})
}

// A renewal cannot come from the future: it would outlast what the head granted.
func TestLeaseFromTheFuture(t *testing.T) {
	var l lease
	l.renew(&AgentMessage{SentAt: int64(2 * time.Hour), Lease: unit.Duration(time.Minute), Orphan: unit.Duration(time.Minute)}, time.Hour)
	if l.end != time.Hour+time.Minute {
		t.Errorf("%+v", l)
	}
}

func TestPeersGrace(t *testing.T) {
	for _, c := range []struct {
		asked time.Duration
		slain bool
		want  time.Duration
	}{
		{0, false, defaultGrace},
		{-time.Second, false, defaultGrace},
		{time.Second, false, time.Second},
		{50 * time.Millisecond, false, 50 * time.Millisecond},
		{0, true, 0},
		{50 * time.Millisecond, true, 0},
		{defaultGrace, true, 0},
		{time.Second, true, time.Second},
	} {
		if got := peersGrace(unit.Duration(c.asked), c.slain); got != c.want {
			t.Errorf("asked for %v, killed from outside %t: %v, want %v", c.asked, c.slain, got, c.want)
		}
	}
}

func TestReaperTellsLateClaims(t *testing.T) {
	r := newReaper()
	for pid := 1; pid <= lostMax+10; pid++ {
		r.keepLost(pid, unix.WaitStatus(pid<<8))
	}
	if len(r.lost) != lostMax {
		t.Errorf("%d lost children are kept, at most %d may be", len(r.lost), lostMax)
	}
	var got []int
	tell := func(ws unix.WaitStatus) { got = append(got, ws.ExitStatus()) }
	r.claim(20, tell)
	r.claim(5, tell) // forgotten: waits
	if fmt.Sprint(got) != "[20]" {
		t.Errorf("told %v", got)
	}
	if r.signal(20, 0) {
		t.Error("a reaped child was signalled")
	}
}

// However many steps are decided meanwhile, a rank that waits hears its own.
func TestAwaitedVerdictIsKept(t *testing.T) {
	s := &shim{fates: map[stepKey]*fate{}, prepared: map[saveKey]*wire.Prepared{}}
	s.journal.Generation = 1
	f := s.fateOf(1, 7)
	for step := range int64(3 * fatesMax) {
		s.verdict(&wire.Verdict{Generation: 1, Step: 100 + step, State: "dropped"})
	}
	if n := len(s.fates); n != fatesMax+1 || len(s.decided) != fatesMax {
		t.Errorf("%d verdicts of %d are kept", n, len(s.decided))
	}
	s.verdict(&wire.Verdict{Generation: 1, Step: 7, State: "committed"})
	select {
	case <-f.done:
		if f.v.State != "committed" {
			t.Errorf("verdict %+v", f.v)
		}
	default:
		t.Error("the waiter did not hear its verdict")
	}
	s.fateOf(1, 8)
	s.journal.Generation = 2
	s.fateOf(2, 9)
	s.dropOldSaves()
	if s.fates[stepKey{1, 8}] != nil || s.fates[stepKey{2, 9}] == nil {
		t.Error("what only an ended attempt waited for is to be forgotten, and nothing else")
	}
}
