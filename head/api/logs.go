package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Bounds of one read of a log.
const (
	defaultLogBytes = 64 << 10
	maxLogBytes     = 1 << 20
	firstPoll       = 15 * time.Millisecond // output grows without a change of the state
	slowestPoll     = 250 * time.Millisecond
)

type logInput struct {
	ID      string `path:"id" maxLength:"512"`
	Rank    int64  `path:"rank" minimum:"0" maximum:"1048576"`
	Attempt int64  `query:"attempt" default:"-1" minimum:"-1" doc:"The attempt; absent or -1: the newest."`
	Stream  string `query:"stream" enum:"stdout,stderr,error" default:"stdout" doc:"error is the error file that torch's @record writes."`
	Offset  int64  `query:"offset" minimum:"0" doc:"First byte to read."`
	Limit   int64  `query:"limit" minimum:"1" doc:"Bytes in one answer: 64 KiB if absent, at most 1 MiB, fewer at the node's will."`
	Wait    string `query:"wait" doc:"How long to wait for something behind offset, at most 30s."`
}

type logOutput struct {
	ContentType string `header:"Content-Type"`
	Attempt     int64  `header:"X-Log-Attempt" doc:"The attempt that was read; -1 when none was started yet."`
	Start       int64  `header:"X-Log-Start" doc:"Offset of the first byte of the body; greater than offset when the head of the file was freed."`
	Size        int64  `header:"X-Log-Size" doc:"Bytes written so far."`
	End         string `header:"X-Log-End" doc:"true: nothing will come after X-Log-Size."`
	Range       string `header:"Content-Range"`
	Index       uint64 `header:"X-Troupe-Index"`
	Body        []byte `contentType:"application/octet-stream"`
}

func (s *server) logs() {
	register(s, op(http.MethodGet, "/api/v1/jobs/{id}/ranks/{rank}/log", "read-log", "What a rank wrote, from a byte offset"), nil, s.readLog)
}

func (s *server) readLog(r *request, in *logInput) (*logOutput, error) {
	wait, err := waiting(in.Wait)
	if err != nil {
		return nil, err
	}
	limit := int64(defaultLogBytes)
	if in.Limit > 0 {
		limit = min(in.Limit, maxLogBytes)
	}
	attempt := in.Attempt
	var chunk wire.LogChunk
	err = s.poll(r, wait, func() (bool, error) {
		if attempt < 0 {
			job, err := s.b.Job(r, in.ID)
			if err != nil {
				return false, err
			}
			if len(job.Attempts) == 0 {
				chunk = wire.LogChunk{Start: in.Offset, Ended: job.State.Terminal()}
				return chunk.Ended, nil
			}
			attempt = job.Attempt // from here on this one, also if another follows
		}
		var err error
		chunk, err = s.b.ReadLog(r, in.ID, in.Rank, attempt, in.Stream, in.Offset, limit)
		var p *api.Problem
		if errors.As(err, &p) && p.Retryable && wait > 0 {
			chunk = wire.LogChunk{Start: in.Offset}
			return false, nil // not there yet
		}
		if err == nil && chunk.Error != "" {
			err = access.NewProblem(http.StatusNotFound, access.CodeNotFound, api.ExitNotFound,
				fmt.Sprintf("the %s of rank %d of job %.80q, attempt %d, cannot be read: %s", in.Stream, in.Rank, in.ID, attempt, chunk.Error),
				"look at the ranks and attempts: troupe job get "+in.ID)
		}
		return len(chunk.Data) > 0 || chunk.Ended, err
	})
	if err != nil {
		return nil, err
	}
	out := &logOutput{
		ContentType: "application/octet-stream", Attempt: attempt,
		Start: chunk.Start, Size: chunk.Size, End: strconv.FormatBool(chunk.Ended), Index: s.b.Index(), Body: chunk.Data,
	}
	if n := int64(len(chunk.Data)); n > 0 {
		out.Range = fmt.Sprintf("bytes %d-%d/%d", chunk.Start, chunk.Start+n-1, max(chunk.Size, chunk.Start+n))
	}
	if out.Body == nil {
		out.Body = []byte{}
	}
	return out, nil
}

// poll is until for what changes without the state: it also looks again by itself, less
// and less often.
func (s *server) poll(r *request, wait time.Duration, probe func() (done bool, err error)) error {
	changed := s.b.Changed()
	done, err := probe()
	if done || err != nil || wait <= 0 {
		return err
	}
	who := access.IdentityOf(r)
	release, err := s.open(who)
	if err != nil {
		return err
	}
	defer release()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	pause := firstPoll
	again := time.NewTimer(pause)
	defer again.Stop()
	for {
		select {
		case <-changed:
			changed = s.b.Changed()
		case <-again.C:
			pause = min(pause*3/2, slowestPoll)
			again.Reset(pause)
			if !who.Valid() {
				return revoked()
			}
		case <-deadline.C:
			return nil
		case <-access.Closing(r):
			return nil
		case <-r.Done():
			return r.Err()
		}
		if done, err := probe(); done || err != nil {
			return err
		}
	}
}
