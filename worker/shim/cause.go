package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// errorFile is where torch's @record says why a rank failed, in the rank's output folder.
const errorFile = "error.json"

const (
	maxTraceback = 4 << 10
	maxMessage   = 1 << 10
	tailSize     = 64 << 10
	maxErrorFile = 256 << 10
)

// failure is what a rank left behind about its own end.
type failure struct {
	message   string
	traceback string
	errorTime string
}

// findFailure looks for the reason of a rank's failure: the error file first, since
// the program wrote it on purpose, then the last Python traceback on stderr. What is
// found there is text of a stranger: it is bounded, made valid, and never parsed
// further.
func findFailure(errorFile, stderr string) failure {
	if f, ok := readErrorFile(errorFile); ok {
		return f
	}
	tail, err := readTail(stderr, tailSize)
	if err != nil {
		return failure{}
	}
	return lastTraceback(tail)
}

// readErrorFile reads the JSON that torch's @record writes; ok is false when it is
// missing or not understood, which is no failure of its own.
func readErrorFile(path string) (failure, bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return failure{}, false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return failure{}, false
	}
	b, err := io.ReadAll(io.LimitReader(f, maxErrorFile+1))
	if err != nil || len(b) > maxErrorFile {
		return failure{}, false
	}
	return parseErrorFile(b)
}

func parseErrorFile(b []byte) (failure, bool) {
	var outer struct {
		Message   json.RawMessage `json:"message"`
		Timestamp json.RawMessage `json:"timestamp"`
	}
	if json.Unmarshal(b, &outer) != nil || len(outer.Message) == 0 {
		return failure{}, false
	}
	var text string
	if json.Unmarshal(outer.Message, &text) == nil {
		if text == "" {
			return failure{}, false
		}
		return failure{message: clip(text, maxMessage), errorTime: scalar(outer.Timestamp)}, true
	}
	var inner struct {
		Message   string `json:"message"`
		ExtraInfo struct {
			Callstack string          `json:"py_callstack"`
			Timestamp json.RawMessage `json:"timestamp"`
		} `json:"extraInfo"`
	}
	if json.Unmarshal(outer.Message, &inner) != nil || inner.Message == "" {
		return failure{}, false
	}
	return failure{
		message:   clip(inner.Message, maxMessage),
		traceback: clipFront(inner.ExtraInfo.Callstack, maxTraceback),
		errorTime: scalar(inner.ExtraInfo.Timestamp),
	}, true
}

// scalar accepts a time as a number or as a string of one; anything else is dropped.
func scalar(raw json.RawMessage) string {
	s := strings.Trim(string(raw), `"`)
	if v, err := strconv.ParseFloat(s, 64); err != nil || v < 0 || len(s) > 32 {
		return ""
	}
	return s
}

func readTail(path string, n int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, st.Size()-n)
	b, err := io.ReadAll(io.NewSectionReader(f, from, n))
	if err != nil {
		return nil, err
	}
	if from > 0 {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:] // the first line was cut
		}
	}
	return b, nil
}

// exceptionLine is the line that ends a traceback: a dotted name, then a colon or
// the end.
var exceptionLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][\w.]*(:.*)?$`) })

const tracebackHead = "Traceback (most recent call last):"

// lastTraceback finds the last traceback of a log and its exception line. Output
// that follows it (a library's warning at exit) does not belong to it.
func lastTraceback(tail []byte) failure {
	lines := strings.Split(strings.ToValidUTF8(string(tail), "?"), "\n")
	start := -1
	for i, l := range lines {
		if strings.HasSuffix(strings.TrimRight(l, "\r"), tracebackHead) {
			start = i
		}
	}
	if start < 0 {
		return failure{}
	}
	// A launcher or logger may put a prefix before each line of the traceback.
	prefix := strings.TrimSuffix(strings.TrimRight(lines[start], "\r"), tracebackHead)
	end, message := start, ""
	for i := start + 1; i < len(lines); i++ {
		l := strings.TrimRight(strings.TrimPrefix(lines[i], prefix), "\r")
		if l == "" || l[0] == ' ' || l[0] == '\t' {
			end = i
			continue
		}
		if exceptionLine().MatchString(l) {
			message, end = l, i
		}
		break
	}
	if message == "" {
		return failure{}
	}
	return failure{
		message:   clip(message, maxMessage),
		traceback: clipFront(strings.Join(lines[start:end+1], "\n"), maxTraceback),
	}
}

// clip keeps the beginning of a text, valid and at most n bytes.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.ReplaceAll(s, "\x00", "?")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}

// clipFront keeps the end, where a traceback names what happened.
func clipFront(s string, n int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) <= n {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-n+3:], "")
}

// endText says how a process ended, for people.
func endText(ws unix.WaitStatus, oom bool) string {
	switch {
	case oom && ws.Signaled():
		return fmt.Sprintf("out of memory: killed by the kernel at the job's memory limit (signal %d)", ws.Signal())
	case oom:
		return fmt.Sprintf("out of memory: the kernel killed a process of this rank at the job's memory limit; exit code %d", ws.ExitStatus())
	case ws.Signaled():
		return fmt.Sprintf("killed by signal %d (%s)", ws.Signal(), unix.SignalName(ws.Signal()))
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}
