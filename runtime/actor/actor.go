// Package actor is the Go half of actors: a host that owns one instance of a
// registered factory and answers calls over the bus, and a caller. Every call and
// every answer carries the generation of the instance (P3): a host refuses a call to
// another generation, a caller refuses an answer of another one. Where actors run and
// when they restart is decided by the head; nothing of it lives here.
package actor

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// MaxPayload bounds the arguments or the result of one call, encoded.
const MaxPayload = 256 << 10

// DefaultMaxPending bounds the calls that wait in a mailbox.
const DefaultMaxPending = 1000

// Errors of a call. Died is final; Unavailable may be tried again.
var (
	// ErrDied: the actor has ended for good; no later call will succeed.
	ErrDied = errors.New("actor died")
	// ErrUnavailable: the actor restarts or cannot be reached now.
	ErrUnavailable = errors.New("actor unavailable")
	// ErrBusy: the mailbox is full; the call was not queued.
	ErrBusy = errors.New("actor mailbox is full")
	// ErrTooLarge: arguments or result are over MaxPayload; nothing was executed.
	ErrTooLarge = errors.New("actor payload too large")
	// ErrNoMethod: the actor has no method of that name.
	ErrNoMethod = errors.New("actor has no such method")
	// ErrStale: the call named a generation that is not the instance's.
	ErrStale = errors.New("actor generation is stale")
)

// MethodError is an error that the method itself returned; it is not retried.
type MethodError struct{ Text string }

// Error is the method's own text.
func (e *MethodError) Error() string { return e.Text }

// Method answers one call: arguments and result are encoded values.
type Method func(ctx context.Context, args []byte) ([]byte, error)

// Instance is what a factory makes: the methods of one actor. They are called one at
// a time, in the order in which a caller sent its calls.
type Instance map[string]Method

// Factory makes an instance from the arguments of its creation.
type Factory func(ctx context.Context, args []byte) (Instance, error)

// Func makes a Method of a function with one argument and one result; both are plain
// data that the wire codec can encode.
func Func[A, R any](f func(ctx context.Context, arg A) (R, error)) Method {
	return func(ctx context.Context, args []byte) ([]byte, error) {
		var a A
		if len(args) > 0 {
			if err := wire.Unmarshal(args, &a); err != nil {
				return nil, fmt.Errorf("arguments: %w", err)
			}
		}
		r, err := f(ctx, a)
		if err != nil {
			return nil, err
		}
		return wire.Marshal(r)
	}
}

var registry = struct {
	sync.RWMutex
	factories map[string]Factory
}{factories: map[string]Factory{}}

// Register makes a factory known under a class name, once. It is called from main or
// an init before the host starts.
func Register(class string, f Factory) error {
	if class == "" || f == nil {
		return errors.New("actor: a class needs a name and a factory")
	}
	registry.Lock()
	defer registry.Unlock()
	if _, twice := registry.factories[class]; twice {
		return fmt.Errorf("actor: class %q is registered already", class)
	}
	registry.factories[class] = f
	return nil
}

func lookup(class string) (Factory, error) {
	registry.RLock()
	defer registry.RUnlock()
	if f := registry.factories[class]; f != nil {
		return f, nil
	}
	names := make([]string, 0, len(registry.factories))
	for n := range registry.factories {
		names = append(names, n)
	}
	sort.Strings(names)
	return nil, fmt.Errorf("actor: this program has no class %q; it has %s", class, strings.Join(names, ", "))
}

// call is a request on the bus.
type call struct {
	Generation uint64 `json:"g"`
	Caller     string `json:"c"`
	Seq        uint64 `json:"s"`
	Method     string `json:"m"`
	Args       []byte `json:"a"`
	// Timeout in milliseconds that the caller still waits; 0: unknown.
	Timeout int64 `json:"t"`
}

// reply answers it. Code is empty for a result.
type reply struct {
	Generation uint64 `json:"g"`
	Code       string `json:"k,omitempty"`
	Text       string `json:"x,omitempty"`
	Result     []byte `json:"r,omitempty"`
}

// Codes of a reply.
const (
	codeStale    = "stale"
	codeBusy     = "busy"
	codeNoMethod = "no-method"
	codeMethod   = "method"
	codeTooLarge = "too-large"
)
