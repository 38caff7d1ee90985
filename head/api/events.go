package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// eventBatch bounds what a stream holds in memory: it reads on only when the client
// has taken what it was sent, so a slow client costs its batch and nothing more.
const eventBatch = 256

type EventParams struct {
	After  int64  `query:"after" default:"-1" minimum:"-1" doc:"Only events with a greater seq. Absent: the list begins with the newest, a stream with the next."`
	Object string `query:"object" maxLength:"4200" doc:"Only events of this object, as job/x, node/y, pg/z."`
}

func (s *server) events() {
	register(s, op(http.MethodGet, "/api/v1/events", "list-events", "Events, oldest first"), nil, s.listEvents)

	stream := op(http.MethodGet, "/api/v1/events/stream", "stream-events", "Events as they happen (server-sent events)")
	stream.Description = "The id of each message is the event's seq; Last-Event-ID resumes behind it. Answers 410, or ends with `event: gone`, when events behind it are no longer kept: list again. A comment is sent every 15 s."
	stream.Responses = map[string]*huma.Response{"200": {
		Description: "A stream of events.",
		Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	register(s, stream, nil, s.streamEvents)
}

func (s *server) listEvents(r *request, in *struct {
	EventParams
	Limit int64 `query:"limit" minimum:"1" maximum:"1000" doc:"Rows in one answer; 100 if absent."`
},
) (*listOutput[api.Event], error) {
	limit := int(in.Limit)
	if limit == 0 {
		limit = defaultLimit
	}
	index := s.b.Index()
	out := &listOutput[api.Event]{Index: index, Body: api.List[api.Event]{Index: index, Items: []api.Event{}}}
	if in.After < 0 {
		rows, err := s.b.LastEvents(r, in.Object, limit)
		if err == nil && rows != nil {
			out.Body.Items = rows
		}
		return out, err
	}
	// One more than asked tells whether rows were cut.
	rows, gone, err := s.b.Events(r, uint64(in.After), in.Object, limit+1)
	if err != nil {
		return nil, err
	}
	if gone && in.After > 0 { // after 0 asks for all that are kept
		return nil, eventsGone(uint64(in.After))
	}
	if len(rows) > limit {
		rows = rows[:limit]
		out.Body.Remaining = 1 // at least: how many is not counted
		out.Body.Cursor = strconv.FormatUint(rows[limit-1].Seq, 10)
	}
	if rows != nil {
		out.Body.Items = rows
	}
	return out, nil
}

func eventsGone(after uint64) *api.Problem {
	return access.NewProblem(http.StatusGone, access.CodeEventsGone, api.ExitConflict,
		fmt.Sprintf("events behind %d are no longer kept", after), "list the state again and resume from the newest event")
}

func (s *server) streamEvents(r *request, in *struct {
	EventParams
	Last string `header:"Last-Event-ID" doc:"seq of the last event that was seen; wins over after."`
},
) (*huma.StreamResponse, error) {
	after, err := s.resumePoint(r, in.After, in.Last)
	if err != nil {
		return nil, err
	}
	changed := s.b.Changed()
	first, gone, err := s.b.Events(r, after, in.Object, eventBatch)
	if err != nil {
		return nil, err
	}
	if gone && after > 0 {
		return nil, eventsGone(after)
	}
	release, err := s.open(access.IdentityOf(r))
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer release()
		req, w := humago.Unwrap(hc)
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // a proxy that collects would defeat the stream
		w.WriteHeader(http.StatusOK)
		if req.Method == http.MethodHead {
			return
		}
		e := &eventStream{s: s, ctx: req.Context(), w: w, control: http.NewResponseController(w), object: in.Object, after: after}
		e.run(first, changed)
	}}, nil
}

// resumePoint is the seq behind which a stream begins.
func (s *server) resumePoint(ctx context.Context, after int64, last string) (uint64, error) {
	if last != "" {
		n, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			return 0, invalid([]api.FieldError{{Pointer: "header/Last-Event-ID", Detail: "is no id that this head gave out"}})
		}
		return n, nil
	}
	if after >= 0 {
		return uint64(after), nil
	}
	newest, err := s.b.LastEvents(ctx, "", 1)
	if err != nil || len(newest) == 0 {
		return 0, err
	}
	return newest[len(newest)-1].Seq, nil
}

// eventStream is one client's stream.
type eventStream struct {
	s       *server
	ctx     context.Context
	w       io.Writer
	control *http.ResponseController
	object  string
	after   uint64
}

func (e *eventStream) run(rows []api.Event, changed <-chan struct{}) {
	who := access.IdentityOf(e.ctx)
	heartbeat := time.NewTicker(e.s.heartbeat)
	defer heartbeat.Stop()
	check := time.NewTicker(recheck)
	defer check.Stop()
	if !e.send("retry: 1000\n\n") {
		return
	}
	for {
		for len(rows) > 0 {
			if !e.write(rows) {
				return
			}
			full := len(rows) == eventBatch
			rows = nil
			if full && !e.read(&rows) {
				return
			}
		}
		select {
		case <-changed:
			changed = e.s.b.Changed()
			if !e.read(&rows) {
				return
			}
		case <-heartbeat.C:
			if !e.send(": alive\n\n") {
				return
			}
		case <-check.C:
			if !who.Valid() {
				return
			}
		case <-access.Closing(e.ctx):
			return
		case <-e.ctx.Done():
			return
		}
	}
}

// read takes the next batch. A client that fell so far behind that events are gone is
// told so and let go; it lists again.
func (e *eventStream) read(rows *[]api.Event) bool {
	got, gone, err := e.s.b.Events(e.ctx, e.after, e.object, eventBatch)
	if err != nil {
		return false // the client resumes, elsewhere if need be
	}
	if gone && e.after > 0 {
		raw, _ := json.Marshal(eventsGone(e.after)) // strings and numbers
		e.send("event: gone\ndata: " + string(raw) + "\n\n")
		return false
	}
	*rows = got
	return true
}

func (e *eventStream) write(rows []api.Event) bool {
	for _, row := range rows {
		raw, err := json.Marshal(row)
		if err != nil {
			return false
		}
		if !e.send("id: " + strconv.FormatUint(row.Seq, 10) + "\ndata: " + string(raw) + "\n\n") {
			return false
		}
		e.after = row.Seq
	}
	return true
}

// send writes and flushes one message under its own deadline; false ends the stream.
func (e *eventStream) send(text string) bool {
	if _, err := io.WriteString(e.w, text); err != nil {
		return false
	}
	return e.control.Flush() == nil
}
