package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
)

// maxLine bounds what is held for one unfinished line of a followed log.
const maxLine = 1 << 20

// maxLive bounds the unfinished line that a terminal shows.
const maxLive = 4 << 10

// lineWriter writes whole lines with a prefix; of a line that is redrawn with \r only
// the last frame is kept.
type lineWriter struct {
	a      *app
	mu     *sync.Mutex // shared by the writers of one output
	prefix string
	json   bool // the line is a JSON text, and the prefix an object up to it
	out    io.Writer
	rest   []byte
	raw    io.Writer               // gets every byte as it came
	copy   func(line, text string) // gets every line, without and with its prefix
	live   *liveLine
}

// liveLine is the last line of a terminal while it is not finished: progress bars are
// drawn there. One writer has it at a time.
type liveLine struct {
	owner *lineWriter
}

// liveLine is there when a person watches.
func (a *app) liveLine() *liveLine {
	out, ok1 := a.out.(*os.File)
	errw, ok2 := a.err.(*os.File)
	if !ok1 || !ok2 || !isTerminal(out) || !isTerminal(errw) {
		return nil
	}
	return &liveLine{}
}

// clearLine takes an unfinished line off the terminal.
const clearLine = "\r\x1b[K"

func (w *lineWriter) write(p []byte) {
	if w.raw != nil {
		_, _ = w.raw.Write(p)
	}
	if w.out == io.Discard {
		return
	}
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			break
		}
		w.emit(w.rest[:i])
		w.rest = w.rest[i+1:]
	}
	w.rest = lastFrame(w.rest)
	if len(w.rest) > maxLine {
		w.emit(w.rest)
		w.rest = nil
	}
	w.show()
}

// lastFrame is what a line that is redrawn with \r looks like in the end.
func lastFrame(line []byte) []byte {
	if i := bytes.LastIndexByte(bytes.TrimRight(line, "\r"), '\r'); i >= 0 {
		return line[i+1:]
	}
	return line
}

// show draws what there is of an unfinished line, unless another writer's stands there.
func (w *lineWriter) show() {
	if w.live == nil || len(w.rest) == 0 || len(w.rest) > maxLive {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live.owner == nil || w.live.owner == w {
		w.live.owner = w
		_, _ = io.WriteString(w.out, clearLine+cleanTTY(strings.TrimRight(string(w.rest), "\r")))
	}
}

func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.emit(w.rest)
		w.rest = nil
	}
}

func (w *lineWriter) emit(line []byte) {
	line = bytes.TrimRight(lastFrame(line), "\r")
	text := string(line)
	end := "\n"
	switch {
	case w.json:
		text, end = jsonText(strings.ToValidUTF8(text, "\ufffd")), "}\n"
	case w.a.isTTY():
		text = cleanTTY(text)
	}
	if w.copy != nil {
		w.copy(string(line), w.prefix+text)
	}
	if w.mu != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
	}
	begin := ""
	if w.live != nil && w.live.owner != nil {
		w.live.owner, begin = nil, clearLine
	}
	_, _ = io.WriteString(w.out, begin+w.prefix+text+end)
}
