package shim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	callEvery   = time.Second
	callTimeout = 5 * time.Second
	maxCalls    = 5                     // on their way at once
	soonest     = 50 * time.Millisecond // between two calls, whatever the leader says
	// dialAfter lets an agent that only lost its connection to the shim come back to it.
	dialAfter = 200 * time.Millisecond
	redial    = 500 * time.Millisecond // between tries with an access that cannot be used
)

// VoiceOptions make a Voice.
type VoiceOptions struct {
	Node  string
	Clock clock.Clock
	// Boot is the node's CLOCK_BOOTTIME.
	Boot func() time.Duration
	// Dial connects to the bus with the identity of the node's shims. It may block for
	// some seconds.
	Dial func() (link.Conn, error)
	// Call says what runs; Nonce and Sent are filled in. false: nothing is to be said.
	Call func() (wire.ShimCall, bool)
	// Heard takes an acknowledgement that is not older than the newest one, and the moment
	// at which its call was sent: leases run from there.
	Heard func(ack wire.ShimAck, sent time.Duration)
	// Idle is called when a connection was closed; nil: nothing.
	Idle func()
}

// Voice speaks to the leader for a shim whose agent is gone: once a second it says what
// runs, and it hears terms and orders. It connects only when it is needed.
type Voice struct {
	o    VoiceOptions
	wake chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	on     bool
	nonce  string
	life   string
	newest wire.Position
	sent   time.Duration // of the newest call
	heard  time.Duration // when the newest acknowledgement came; 0: never
	calls  int
	soon   time.Duration // the leader's word: when to call again; 0: callEvery
}

// NewVoice makes a voice that is silent until Speak.
func NewVoice(o VoiceOptions) *Voice { return &Voice{o: o, wake: make(chan struct{}, 1)} }

// Speak says whether the shim has to speak for itself from now on.
func (v *Voice) Speak(on bool) {
	if v == nil {
		return
	}
	v.mu.Lock()
	changed := v.on != on
	v.on = on
	v.mu.Unlock()
	if changed {
		v.stir()
	}
}

// News makes the voice call at once, if it speaks.
func (v *Voice) News() {
	if v.speaks() {
		v.stir()
	}
}

func (v *Voice) stir() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *Voice) speaks() bool {
	if v == nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.on
}

// Answered reports whether a leader has answered within the last d.
func (v *Voice) Answered(d time.Duration) bool {
	if v == nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.on && v.heard > 0 && v.o.Boot()-v.heard < d
}

// Run speaks whenever it has to, until ctx ends.
func (v *Voice) Run(ctx context.Context) {
	defer v.wg.Wait()
	for v.pause(ctx, -1) {
		for ctx.Err() == nil && v.speaks() {
			v.converse(ctx)
		}
	}
}

// pause waits for d, for ever if it is negative, or until something stirs.
func (v *Voice) pause(ctx context.Context, d time.Duration) bool {
	var after <-chan time.Time
	if d >= 0 {
		t := v.o.Clock.NewTimer(d)
		defer t.Stop()
		after = t.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-v.wake:
	case <-after:
	}
	return true
}

// converse holds one connection for as long as it is needed.
func (v *Voice) converse(ctx context.Context) {
	if v.o.Clock.Sleep(ctx, dialAfter) != nil || !v.speaks() {
		return
	}
	c, err := v.o.Dial()
	if err != nil {
		_ = v.o.Clock.Sleep(ctx, redial+rand.N(redial)) // what is wrong may be put right
		return
	}
	cctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	for ctx.Err() == nil && v.speaks() {
		v.call(cctx, &calls, c)
		v.pause(ctx, v.next())
	}
	cancel()
	c.Close()
	calls.Wait()
	if v.o.Idle != nil {
		v.o.Idle()
	}
}

// next is how long to wait before the next call.
func (v *Voice) next() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.soon > 0 {
		return min(max(v.soon, soonest), callEvery)
	}
	return callEvery
}

// call sends one call beside the loop: one that waits for its answer must not hold up the
// next.
func (v *Voice) call(ctx context.Context, calls *sync.WaitGroup, c link.Conn) {
	m, ok := v.o.Call()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !ok || v.calls >= maxCalls {
		return
	}
	v.calls++
	// The lease runs from before the sending: that can only make it shorter.
	sent := max(v.o.Boot(), v.sent+1)
	v.sent = sent
	m.Sent, m.Nonce = int64(sent), v.nonce
	calls.Go(func() {
		defer func() {
			v.mu.Lock()
			v.calls--
			v.mu.Unlock()
		}()
		data, err := wire.Marshal(m)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		raw, err := c.Request(ctx, wire.HeadShim+v.o.Node, data)
		if err != nil {
			return
		}
		var ack wire.ShimAck
		if wire.Unmarshal(raw, &ack) == nil && ack.Sent == m.Sent {
			v.take(ack, sent)
		}
	})
}

// take hears an acknowledgement, unless a newer one was heard: a leader that was deposed
// may still speak (P3).
func (v *Voice) take(ack wire.ShimAck, sent time.Duration) {
	v.mu.Lock()
	if ack.Life != "" && ack.Life != v.life {
		v.life, v.newest = ack.Life, wire.Position{} // another log, which counts anew
	}
	if ack.Position.Less(v.newest) {
		v.mu.Unlock()
		return
	}
	v.newest = ack.Position
	again := ack.Again && ack.Nonce != v.nonce
	v.nonce = ack.Nonce
	sooner := false
	if !ack.Again {
		v.heard = v.o.Boot()
		sooner = v.soon == 0 && ack.Soon > 0
		v.soon = ack.Soon.D()
	}
	v.mu.Unlock()
	if again || sooner {
		v.stir()
	}
	if !ack.Again {
		v.o.Heard(ack, sent)
	}
}
