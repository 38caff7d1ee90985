package supervise

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a decision carries, in bytes. Ranks write the texts, so any of them
// may be long or strange.
const (
	maxReason    = 400
	maxMessage   = 300
	maxTraceback = 4 << 10
	maxDigested  = 64 << 10
)

// clip cuts at the end, on a rune, and says so.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// clipTail keeps the end: a traceback names the exception last.
func clipTail(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := len(s) - most
	for cut < len(s) && !utf8.RuneStart(s[cut]) {
		cut++
	}
	return s[cut:]
}

// printable is the text on one line without anything that would move a terminal.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// many is a word for n things.
func many(n int64, one string) string {
	if n == 1 {
		return one
	}
	return one + "s"
}

// allRanks names all ranks of a group.
func allRanks(world int64) string {
	if world == 1 {
		return "the only rank"
	}
	return fmt.Sprintf("all %d ranks", world)
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\r\n\t ")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// connectionSigns are parts of the messages with which ranks end when a peer is gone.
// They are compared in lower case.
var connectionSigns = []string{
	"connection reset", "connection closed", "connection refused", "connection aborted", "connection was closed",
	"closed by peer", "connectionerror", "connectionreseterror", "connectionabortederror", "brokenpipeerror", "broken pipe",
	"nccl", "gloo", "recvvalue failed", "sendbytes failed", "recvbytes failed", "socket timeout", "failed to recv", "failed to send",
	"remote process exited", "distbackenderror", "distnetworkerror", "diststoreerror", "tcpstore", "watchdog caught collective",
	"network is unreachable", "no route to host", "unhandled system error",
}

// isConnectionError reports whether a rank ended because it could not reach another,
// which says nothing of why.
func isConnectionError(message string) bool {
	low := strings.ToLower(clip(message, maxTraceback))
	for _, sign := range connectionSigns {
		if strings.Contains(low, sign) {
			return true
		}
	}
	return false
}

// What differs between two runs into the same failure.
var (
	addresses = regexp.MustCompile(`0x[0-9a-fA-F]+`)
	temporary = regexp.MustCompile(`(/tmp|/var/tmp|/dev/shm|/run)/[^\s"',:;)\]]*`)
	hexes     = regexp.MustCompile(`\b[0-9a-f]{8,}\b`)
	ranksOf   = regexp.MustCompile(`(?i)\brank[ =:_]*\d+`)
	numbers   = regexp.MustCompile(`\d{3,}`)
	lineOf    = regexp.MustCompile(`line (\d+)`)
)

// digest is equal for the same failure of another rank or attempt: without addresses,
// process ids, ports, rank numbers, temporary names. Line numbers are kept, they say
// where. "" for no text.
func digest(text string) string {
	text = strings.TrimSpace(clipTail(text, maxDigested))
	if text == "" {
		return ""
	}
	text = addresses.ReplaceAllString(text, "ADDR")
	text = temporary.ReplaceAllString(text, "TEMP")
	text = ranksOf.ReplaceAllString(text, "RANK")
	text = lineOf.ReplaceAllStringFunc(text, spell)
	text = hexes.ReplaceAllString(text, "HEX")
	text = numbers.ReplaceAllString(text, "N")
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails, by its contract
	return fmt.Sprintf("%016x", h.Sum64())
}

// spell hides the digits of a line number from the rules that drop numbers.
func spell(line string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return 'A' + r - '0'
		}
		return r
	}, line)
}

func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

// sigKill is SIGKILL on Linux; the shim reports numbers.
const sigKill = 9

var signals = map[int64]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

// SignalName is the name of a signal on Linux.
func SignalName(n int64) string {
	if s := signals[n]; s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}
