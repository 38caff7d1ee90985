// Package join is how a machine becomes a node of a cluster: it and a head prove to each
// other that both hold the join key of the hosts, and only then the machine's certificate
// request is signed. The exchange runs inside a TLS connection to the head's API port,
// under a protocol name of its own, and both sides of it live here. What a certificate is
// worth afterwards lives in runtime/trust; which key a command uses, in the command.
//
//	machine → head   hello    its nonce
//	head → machine   hello    the head's nonce
//	machine → head   proof    HMAC-SHA-256(key, "joiner", both nonces, digest of the root)
//	head → machine   proof    HMAC-SHA-256(key, "head", the same)
//	machine → head   request  certificate request, and what it comes for
//	head → machine   grant    certificate, and the answer; or a refusal with its reason
//
// The machine takes the digest from the connection, whose certificate it has checked
// against that root; so somebody in the middle, who has another root, can pass no proof
// on. Who cannot prove the key learns nothing but that: all it is sent is a nonce. Nonces
// are drawn for each connection, which is why an old proof proves nothing.
package join

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Protocol is the name in the TLS handshake (ALPN).
const Protocol = "troupe-join/1"

// Bounds of the exchange.
const (
	nonceSize = 32
	maxHello  = 1 << 10 // until the key is proven
	maxBody   = 1 << 20 // after that
	proveTime = 5 * time.Second
	grantTime = 10 * time.Second
)

// Errors of Ask that callers act on. All others may pass: try again.
var (
	// ErrDenied: the head does not accept this machine's key.
	ErrDenied = errors.New("the head does not accept the join key of this host")
	// ErrImpostor: what answers cannot prove that it has the key.
	ErrImpostor = errors.New("what answers cannot prove that it knows the join key")
	// ErrNotHead: something else listens at the address.
	ErrNotHead = errors.New("what listens there is not a head that hosts can join")
	// ErrKey: a text or file holds no join key.
	ErrKey = errors.New("no join key")
)

// Refused is the head's answer to a machine that has the key and cannot be taken.
type Refused struct {
	Code string `json:"code,omitempty"` // stable, TRP-…
	Text string `json:"text"`
	Help string `json:"help,omitempty"`
	Exit int    `json:"exit,omitempty"` // code that a command ends with
	// Again says that the same request may be taken later.
	Again bool `json:"again,omitempty"`
}

// Error is the reason.
func (r *Refused) Error() string { return r.Text }

// Key is the secret that the hosts of a cluster share. It never prints itself.
type Key struct{ secret [32]byte }

// String is not the key.
func (Key) String() string { return "join key" }

// LogValue is not the key.
func (Key) LogValue() slog.Value { return slog.StringValue("join key") }

// NewKey draws a key.
func NewKey() (Key, error) {
	var k Key
	if _, err := rand.Read(k.secret[:]); err != nil {
		return k, fmt.Errorf("draw a join key: %w", err)
	}
	return k, nil
}

// ParseKey reads 64 hex digits. The error does not quote what it read.
func ParseKey(s string) (Key, error) {
	var k Key
	raw, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(raw) != len(k.secret) {
		return k, fmt.Errorf("%w: want 64 hex digits", ErrKey)
	}
	copy(k.secret[:], raw)
	return k, nil
}

// ReadKey reads a key file; one that others can read is refused (trust.ErrOpenKey).
func ReadKey(path string) (Key, error) {
	b, err := trust.ReadSecret(path)
	if err != nil {
		return Key{}, err
	}
	k, err := ParseKey(string(b))
	if err != nil {
		return k, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// WriteKey draws a key and writes it to a new file of mode 0600; a file that is there
// already is an error (fs.ErrExist) and stays as it is.
func WriteKey(path string) error {
	k, err := NewKey()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of the join key: %w", err)
	}
	// Linked into place: a name that exists is not replaced, and no half is ever read.
	tmp, err := os.CreateTemp(filepath.Dir(path), ".join-")
	if err != nil {
		return fmt.Errorf("write the join key: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(hex.EncodeToString(k.secret[:]) + "\n")
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Link(tmp.Name(), path)
	}
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", path, fs.ErrExist)
		}
		return fmt.Errorf("write the join key: %w", err)
	}
	return nil
}

// side keeps the proofs of the two sides apart: one sent back proves nothing.
type side string

const (
	joiner side = "joiner"
	head   side = "head"
)

func (k Key) proof(s side, joinerNonce, headNonce []byte, root trust.Digest) []byte {
	m := hmac.New(sha256.New, k.secret[:])
	_, _ = io.WriteString(m, "troupe join 1 "+string(s)+"\x00")
	m.Write(joinerNonce)
	m.Write(headNonce)
	m.Write(root[:])
	return m.Sum(nil)
}

type helloMessage struct {
	Nonce []byte `json:"nonce"`
}

type proofMessage struct {
	Proof  []byte `json:"proof,omitempty"`
	Denied bool   `json:"denied,omitempty"`
}

type requestMessage struct {
	CSR     []byte          `json:"csr"`
	Purpose json.RawMessage `json:"purpose,omitempty"`
}

// Grant is what a machine gets.
type Grant struct {
	Chain   [][]byte        `json:"chain"` // leaf, intermediate, root in DER
	Node    string          `json:"node"`
	BusPort int             `json:"busPort"`
	Answer  json.RawMessage `json:"answer,omitempty"` // to the purpose
}

type grantMessage struct {
	Grant   *Grant   `json:"grant,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
}

func writeFrame(w io.Writer, limit int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if len(b) > limit {
		return fmt.Errorf("a message has %d bytes, at most %d go", len(b), limit)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// errFrame: what came is no message of ours.
var errFrame = errors.New("malformed message")

func readFrame(r io.Reader, limit int, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > uint32(limit) {
		return fmt.Errorf("%w: %d bytes, at most %d are read", errFrame, n, limit)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	if json.Unmarshal(b, v) != nil {
		return errFrame // its own error may quote what it read
	}
	return nil
}
