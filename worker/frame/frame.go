// Package frame is the one framing of a node's local sockets: a 4-byte big-endian length
// and a JSON object, bounded on both sides. What the objects mean belongs to the packages
// that speak over such a socket.
package frame

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrMalformed is wrapped when a peer does not speak the protocol: a length out of
// bounds, or bytes that are not the expected JSON. The connection is of no more use.
var ErrMalformed = errors.New("malformed frame")

// ErrSize is wrapped when a frame would be larger than its limit. Nothing was sent
// and the connection is as good as before.
var ErrSize = errors.New("the frame is too large")

// Read reads one frame of at most limit bytes into v. It returns io.EOF when
// the peer closed between two frames. Memory grows with the bytes that arrived, not
// with the length that was claimed.
func Read(r io.Reader, limit int, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: ends inside its length", ErrMalformed)
		}
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || uint64(n) > uint64(limit) {
		return fmt.Errorf("%w: length %d is not between 1 and %d", ErrMalformed, n, limit)
	}
	const piece = 64 << 10
	body := make([]byte, 0, min(int(n), piece))
	for len(body) < int(n) {
		at := len(body)
		body = append(body, make([]byte, min(int(n)-at, piece))...)
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("%w: ends after %d of %d bytes", ErrMalformed, at, n)
			}
			return err
		}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// Write writes v as one frame, in one call, so that frames of different writers never
// mix. For a v that is larger than limit the error wraps ErrSize.
func Write(w io.Writer, limit int, v any) error {
	buf, err := Encode(limit, v)
	if err != nil {
		return err
	}
	_, err = w.Write(buf)
	return err
}

// Encode returns the bytes of v's frame, with Write's errors.
func Encode(limit int, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode frame: %w", err)
	}
	if len(body) > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are sent", ErrSize, len(body), limit)
	}
	buf := make([]byte, 4+len(body))
	binary.BigEndian.PutUint32(buf, uint32(len(body)))
	copy(buf[4:], body)
	return buf, nil
}
