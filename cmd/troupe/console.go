package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// console is where output of ranks goes when torchrun's options shape it: its prefixes,
// copies in a log folder, streams left out.
type console struct {
	a          *app
	mu         sync.Mutex
	live       *liveLine
	role       string
	prefix     string // template
	runDir     string // <log dir>/<run id>_<random>; "" writes no files
	redirects  map[int64]int64
	tee        map[int64]int64
	shown      map[int64]bool // nil: all
	outFilters []string
	errFilters []string
	node       string                                      // only ranks on this node are shown; "": all
	plain      func(api.Job, api.Attempt, api.Rank) string // prefix of what is not teed
	copies     map[string]*os.File                         // of filtered lines, by path
}

// every stands for all local ranks in a map of codes.
const every = int64(-1)

// Bits of a code of --redirects and --tee.
const (
	codeOut = 1
	codeErr = 2
)

// newConsole makes the log folder. runID begins its name, as under torchrun.
func newConsole(a *app, set *torchrun.Settings, runID string) (*console, error) {
	c := &console{
		a: a, role: set.Role, prefix: set.Prefix, redirects: torchrun.Codes(set.Redirects), tee: torchrun.Codes(set.Tee),
		outFilters: set.OutFilters, errFilters: set.ErrFilters, copies: map[string]*os.File{}, live: a.liveLine(),
	}
	if set.RanksFilter != nil {
		c.shown = map[int64]bool{}
		for _, r := range set.RanksFilter {
			c.shown[r] = true
		}
	}
	dir := set.LogDir
	var err error
	switch {
	case dir == os.DevNull:
		return c, nil
	case dir == "" && set.Redirects == "0" && set.Tee == "0":
		return c, nil // nothing would be in it but error files, whose place the summary names
	case dir == "":
		if dir, err = os.MkdirTemp("", "torchelastic_"); err != nil {
			return nil, fmt.Errorf("make a log folder: %w", err)
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the log folder: %w", err)
	}
	if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
		return nil, usage("--log-dir %s is a file, not a folder", dir)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the log folder: %w", err)
	}
	name := strings.NewReplacer("/", "_", "*", "_").Replace(runID)
	if c.runDir, err = os.MkdirTemp(dir, name[:min(len(name), 128)]+"_*"); err != nil {
		return nil, fmt.Errorf("make the log folder: %w", err)
	}
	return c, nil
}

func codeOf(m map[int64]int64, rank int64) int64 {
	if c, ok := m[rank]; ok {
		return c
	}
	return m[every]
}

// rankDir is the folder of one rank of one attempt: by its local rank, as under torchrun,
// or by its rank when the job runs on several nodes, where local ranks come twice.
func (c *console) rankDir(at api.Attempt, r api.Rank) string {
	n := r.LocalRank
	for _, other := range at.Ranks {
		if other.Node != r.Node {
			n = r.Rank
		}
	}
	return filepath.Join(c.attemptDir(at), strconv.FormatInt(n, 10))
}

func (c *console) attemptDir(at api.Attempt) string {
	return filepath.Join(c.runDir, fmt.Sprintf("attempt_%d", at.Number))
}

// sink makes the writer for one stream of one rank.
func (c *console) sink(j api.Job, at api.Attempt, r api.Rank, stream string) (w *lineWriter, done func(), err error) {
	bit, filters := int64(codeOut), c.outFilters
	out := c.a.out
	if stream == "stderr" {
		bit, out, filters = codeErr, c.a.err, c.errFilters
	}
	teed, redirected := codeOf(c.tee, r.LocalRank)&bit != 0, codeOf(c.redirects, r.LocalRank)&bit != 0
	w = &lineWriter{a: c.a, mu: &c.mu, out: out}
	switch {
	case teed:
		host := r.Node
		w.prefix = torchrun.LinePrefix(c.prefix, c.role, host, strconv.FormatInt(r.Rank, 10), strconv.FormatInt(r.LocalRank, 10))
	case c.plain != nil:
		w.prefix = c.plain(j, at, r)
	}
	if c.shown != nil && !c.shown[r.LocalRank] || redirected && !teed {
		w.out = io.Discard
	}
	if w.prefix == "" {
		w.live = c.live
	}
	if c.runDir == "" {
		return w, func() {}, nil
	}
	dir := c.rankDir(at, r)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("make the log folder: %w", err)
	}
	if teed && len(filters) > 0 && w.out != io.Discard {
		path := filepath.Join(c.attemptDir(at), "filtered_"+stream+".log")
		w.copy = func(line, text string) { c.filtered(path, filters, line, text) }
	}
	if !teed && !redirected {
		return w, func() {}, nil
	}
	f, err := os.Create(filepath.Join(dir, stream+".log"))
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	w.raw = f
	return w, func() { _ = f.Close() }, nil
}

// filtered appends a line that has any of the words to the attempt's file of those.
func (c *console) filtered(path string, words []string, line, text string) {
	if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.copies[path]
	if f == nil {
		var err error
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640); err != nil {
			c.a.note("%v", err)
			return
		}
		c.copies[path] = f
	}
	_, _ = io.WriteString(f, text+"\n")
}

// close ends the copies.
func (c *console) close() {
	for _, f := range c.copies {
		_ = f.Close()
	}
}

// logFile is where a launched cluster's own log goes; nowhere if it cannot be opened.
func logFile(state string) io.Writer {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return io.Discard
	}
	f, err := os.OpenFile(filepath.Join(state, "launch.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return io.Discard
	}
	return f
}
