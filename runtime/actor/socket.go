package actor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
)

// maxFrame bounds an answer on the shim's rank socket: that to bus carries the actor's
// arguments and is the largest.
const maxFrame = 512 << 10

// errNotUnder is told to a host program that Troupe did not start.
var errNotUnder = errors.New("actor: TROUPE_SOCKET is not set; a host program is started by Troupe, not by hand")

// request and answer are the few members of the rank protocol that a host needs.
type request struct {
	Op         string `json:"op"`
	V          int    `json:"v,omitempty"`
	Rank       int64  `json:"rank"`
	Generation uint64 `json:"gen,omitempty"`
	PID        int    `json:"pid,omitempty"`
}

type response struct {
	OK          bool     `json:"ok"`
	Error       string   `json:"error"`
	URLs        []string `json:"urls"`
	User        string   `json:"user"`
	Password    string   `json:"password"`
	InboxPrefix string   `json:"inboxPrefix"`
	ActorID     string   `json:"actorId"`
	ActorClass  string   `json:"actorClass"`
	ActorArgs   []byte   `json:"actorArgs"`
}

// Main is what a host program calls: it learns from its shim which actor it is and
// how to reach the bus, and hosts it until ctx ends.
func Main(ctx context.Context, log *slog.Logger) error {
	path := os.Getenv("TROUPE_SOCKET")
	if path == "" {
		return errNotUnder
	}
	generation, err := strconv.ParseUint(os.Getenv("TROUPE_GENERATION"), 10, 64)
	if err != nil {
		return fmt.Errorf("actor: TROUPE_GENERATION: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("actor: reach the shim: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := ask(conn, request{Op: "hello", V: 1, Generation: generation, PID: os.Getpid()}); err != nil {
		return err
	}
	me, err := ask(conn, request{Op: "bus"})
	if err != nil {
		return err
	}
	b, err := bus.Dial(ctx, bus.DialOptions{URLs: me.URLs, User: me.User, Password: me.Password, Name: me.ActorID, InboxPrefix: me.InboxPrefix, Logger: log})
	if err != nil {
		return fmt.Errorf("actor: reach the bus: %w", err)
	}
	defer b.Close()
	return Host(ctx, HostOptions{ID: me.ActorID, Generation: generation, Class: me.ActorClass, Args: me.ActorArgs, Bus: b, Logger: log})
}

// ask sends one frame and reads its answer.
func ask(conn net.Conn, q request) (response, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return response{}, fmt.Errorf("actor: encode %s: %w", q.Op, err)
	}
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return response{}, fmt.Errorf("actor: %s: %w", q.Op, err)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, err := conn.Write(append(frame, body...)); err != nil {
		return response{}, fmt.Errorf("actor: tell the shim %s: %w", q.Op, err)
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return response{}, fmt.Errorf("actor: the shim's answer to %s: %w", q.Op, err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return response{}, fmt.Errorf("actor: the shim's answer to %s has %d bytes", q.Op, n)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return response{}, fmt.Errorf("actor: the shim's answer to %s: %w", q.Op, err)
	}
	var r response
	if err := json.Unmarshal(buf, &r); err != nil {
		return response{}, fmt.Errorf("actor: the shim's answer to %s: %w", q.Op, err)
	}
	if !r.OK {
		return response{}, fmt.Errorf("actor: the shim refused %s: %s", q.Op, r.Error)
	}
	return r, nil
}
