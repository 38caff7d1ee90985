package store

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/test/s3"
	"github.com/troupe-runtime/troupe/test/saves"
)

// campaign is one server, on which each run of the protocol has a prefix of its own.
type campaign struct {
	server *s3.Server
	proxy  *s3.Proxy
	shard  string
	runs   int
}

// count runs the script undisturbed and says which of its requests have a body.
func (c *campaign) count(t *testing.T) (bodies []bool) {
	t.Helper()
	p := c.protocol(t)
	must(t, p.Save(10, 1))
	stop := c.proxy.Listen(func(r *http.Request) { bodies = append(bodies, r.ContentLength > 1) })
	must(t, p.Script())
	stop()
	p.Nothing("undisturbed")
	return bodies
}

// protocol is a run whose processes reach the server through the proxy.
func (c *campaign) protocol(t *testing.T) *saves.Protocol {
	t.Helper()
	c.runs++
	prefix := fmt.Sprintf("%s-%d", c.shard, c.runs)
	p := &saves.Protocol{T: t, Store: c.server.Store(prefix, c.proxy), Content: crashContent}
	root := filepath.Join(c.server.File(prefix), saves.Run)
	// Each process has a client of its own, so what one knew dies with it.
	p.Open = func(writer string) checkpoint.Opener { return quick(writer).Open }
	p.Put = func(dir string, files []saves.File) ([]wire.PreparedFile, error) {
		s, err := p.Open("saver")(t.Context(), p.Store)
		if err != nil {
			return nil, err
		}
		var out []wire.PreparedFile
		for _, f := range files {
			local := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(local, f.Data, 0o600); err != nil {
				return nil, err
			}
			digest, length, err := s.(checkpoint.Uploader).Upload(t.Context(), saves.Run, dir, f.Name, disk.OS(), local)
			if err != nil {
				return nil, err
			}
			out = append(out, wire.PreparedFile{Path: f.Name, Length: length, Digest: digest})
		}
		return out, nil
	}
	p.Look = func(dir, file string) ([]byte, error) {
		return os.ReadFile(filepath.Join(root, filepath.Base(dir), filepath.FromSlash(file)))
	}
	p.Left = func() ([]string, error) {
		s, err := p.Open("looker")(t.Context(), p.Store)
		if err != nil {
			return nil, err
		}
		out, err := saves.Files(disk.OS(), root)
		b := s.(*Bucket)
		for _, key := range b.unfinished(t) {
			out = append(out, "unfinished "+strings.TrimPrefix(key, b.top(saves.Run)+"/"))
		}
		return out, err
	}
	return p
}

// unfinished lists the uploads of large files that nobody has finished or ended.
func (b *Bucket) unfinished(t *testing.T) []string {
	t.Helper()
	var keys []string
	must(t, b.abort(t.Context(), b.top(saves.Run)+"/", func(key string, _ time.Time) bool {
		keys = append(keys, key)
		return false
	}))
	return keys
}

// large is a file of two parts, for the one step that is disturbed.
var large = bytes.Repeat([]byte("0123456789abcde\n"), (testPart+100_000)/16)

func crashContent(rank, step int64, gen uint64) []saves.File {
	text := fmt.Sprintf("rank %d step %d generation %d;", rank, step, gen)
	files := []saves.File{
		{Name: checkpoint.RankDir(rank) + "/model.pt", Data: []byte(strings.Repeat(text, 60))},
		{Name: checkpoint.RankDir(rank) + "/rng.pt", Data: []byte(text)},
	}
	if rank == 1 && step == 20 && gen == 1 {
		files[0].Data = append([]byte(text), large...)
	}
	return files
}

// cut is one way to lose the server.
type cut struct {
	name  string
	fault s3.Fault
	// once: that one request only. Else the server is gone from then on.
	once bool
}

var cuts = []cut{
	{"before it arrived", s3.Fault{Reset: true}, false},
	{"before its answer", s3.Fault{Lose: true}, false},
	{"in its body", s3.Fault{Tear: true}, false},
	{"once before it arrived", s3.Fault{Reset: true}, true},
	{"once before its answer", s3.Fault{Lose: true}, true},
	{"once in its body", s3.Fault{Tear: true}, true},
}

// at runs the protocol, loses the server at a request, and asks what holds afterwards. It
// returns how many steps were in the log.
func (c *campaign) at(t *testing.T, nth, requests int, how cut) int {
	t.Helper()
	name := fmt.Sprintf("cut %s, request %d of %d", how.name, nth, requests)
	p := c.protocol(t)
	must(t, p.Save(10, 1))
	how.fault.Nth = nth
	heal := []func(){c.proxy.Inject(how.fault)}
	if !how.once {
		heal = append(heal, c.proxy.Inject(s3.Fault{Nth: nth + 1, On: true, Reset: true}))
	}
	err := p.Script()
	for _, f := range heal {
		f()
	}
	switch {
	case how.once && err != nil:
		t.Fatalf("%s: a lost request is not tried again: %v", name, err)
	case !how.once && err == nil:
		t.Fatalf("%s: the server was gone and nobody noticed", name)
	}
	logged := len(p.Log)
	p.Crashed(10, name)
	return logged
}

// TestCrashAtEveryRequest is DESIGN §9 over S3: a save with everything that belongs to it,
// and the retention after it, lose the server at every single request: before it arrives,
// after it was done and before its answer, in the middle of its body; for good or once.
// Whoever comes next knows the log and asks the store: what the log holds as newest is
// restored by every rank, byte for byte, nothing else looks committed, the run goes on, and
// nothing stays behind (P4, I19, I22).
func TestCrashAtEveryRequest(t *testing.T) {
	if testing.Short() {
		return // a minute; a short run has single requests that fail
	}
	server := s3.Start(t)
	start := func(t *testing.T, shard string) *campaign {
		return &campaign{server: server, proxy: s3.NewProxy(t, server), shard: shard}
	}
	bodies := start(t, "count").count(t)
	var points, torn, uncommitted atomic.Int64
	t.Run("cut", func(t *testing.T) {
		for _, how := range cuts {
			t.Run(how.name, func(t *testing.T) {
				t.Parallel()
				c := start(t, strings.ReplaceAll(how.name, " ", "-"))
				for i, body := range bodies {
					if how.fault.Tear && !body {
						continue
					}
					if c.at(t, i+1, len(bodies), how) == 1 {
						uncommitted.Add(1)
					}
					if how.fault.Tear {
						torn.Add(1)
					}
					points.Add(1)
				}
			})
		}
	})
	if len(bodies) < 25 || uncommitted.Load() < 30 || torn.Load() < 8 {
		t.Errorf("%d requests, %d times cut before the entry, %d torn bodies: the test has lost its teeth", len(bodies), uncommitted.Load(), torn.Load())
	}
	t.Logf("%d points at %d requests, %d of them in a body, %d before the step was in the log", points.Load(), len(bodies), torn.Load(), uncommitted.Load())
}
