package actor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"testing"
)

// answered asks for bus on a connection whose other end gives one answer.
func answered(t *testing.T, answer response) (response, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		defer theirs.Close()
		var head [4]byte
		if _, err := io.ReadFull(theirs, head[:]); err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, theirs, int64(binary.BigEndian.Uint32(head[:])))
		body, err := json.Marshal(answer)
		if err != nil {
			return
		}
		_, _ = theirs.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	}()
	return ask(ours, request{Op: "bus"})
}

// An actor's arguments may have 256 KiB, and travel as base64.
func TestAnswerHoldsLargeArguments(t *testing.T) {
	args := bytes.Repeat([]byte{1, 2, 3, 4}, 64<<10)
	if r, err := answered(t, response{OK: true, ActorArgs: args}); err != nil || !bytes.Equal(r.ActorArgs, args) {
		t.Errorf("%d bytes of arguments arrived as %d: %v", len(args), len(r.ActorArgs), err)
	}
	if _, err := answered(t, response{OK: true, ActorArgs: make([]byte, maxFrame)}); err == nil {
		t.Error("an answer beyond the bound was taken")
	}
}
