package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

const (
	// agentSilent is how long an agent that is connected may say nothing while ranks run.
	// It asks for their steps twice a second, so it is stopped, or its machine is.
	agentSilent = 1500 * time.Millisecond
	// reached is how recent an answer must be for the shim's last words to wait for one.
	reached = 3 * time.Second
	// idleAfter is longer than a short job, which would pay for a collection in vain.
	idleAfter   = 4 * time.Second
	maxAccess   = 64 << 10 // bytes of the file
	defaultGone = 200 * time.Millisecond
)

// ReadAccess reads how the node's shims reach the bus. The error quotes nothing of it.
func ReadAccess(path string) (link.Access, error) {
	var a link.Access
	fi, err := os.Stat(path)
	if err != nil {
		return a, fmt.Errorf("read the access to the bus: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 || fi.Size() > maxAccess {
		return a, fmt.Errorf("the access to the bus in %s is not used: want a small file of mode 0600", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return a, fmt.Errorf("read the access to the bus: %w", err)
	}
	if json.Unmarshal(b, &a) != nil {
		return a, fmt.Errorf("%s holds no access to the bus", path)
	}
	return a, nil
}

// giveVoice makes the shim able to speak for itself.
func (s *shim) giveVoice() {
	if s.cfg.Bus == "" {
		return
	}
	boot, err := process.BootID()
	if err != nil {
		log.Printf("speak for itself: %v", err)
		return
	}
	s.voice = NewVoice(VoiceOptions{
		Node: s.cfg.Node, Clock: clock.Real(), Boot: s.now,
		Dial: func() (link.Conn, error) {
			a, err := ReadAccess(s.cfg.Bus)
			if err != nil {
				log.Printf("%v", err)
				return nil, err
			}
			return link.Dial(a, s.cfg.Alloc)
		},
		Call: func() (wire.ShimCall, bool) {
			c := make(chan wire.ShimCall, 1)
			s.post(func() { c <- s.callNow(boot) })
			select {
			case m := <-c:
				return m, true
			case <-s.quit:
				return wire.ShimCall{}, false
			}
		},
		Heard: func(ack wire.ShimAck, sent time.Duration) { s.post(func() { s.heard(&ack, sent) }) },
		// A shim that does not speak is small again, once what spoke has ended.
		Idle: func() { time.AfterFunc(idleAfter, stayResident) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-s.quit
		cancel()
	}()
	go s.voice.Run(ctx)
}

// speak decides whether somebody else speaks for this shim.
func (s *shim) speak(now time.Duration) {
	if s.voice == nil {
		return
	}
	s.voice.Speak(len(s.agents) == 0 || s.att.active() && s.att.began && now-s.agentAt > agentSilent)
}

func (s *shim) callNow(boot string) wire.ShimCall {
	s.flush() // what is told is in the journal
	st := s.status().Status
	c := wire.ShimCall{
		Alloc: st.ID, Job: st.Job, Boot: boot, Generation: st.Generation, State: st.State, Steps: st.Steps, Answers: st.Answers,
		Prepared: s.unsure(), Done: s.errands.done(),
	}
	size := 0
	for i := range s.journal.Unacked {
		ev := &s.journal.Unacked[i]
		size += 512 + len(ev.Message)
		if ev.Exit != nil {
			size += len(ev.Exit.Message) + len(ev.Exit.Traceback)
		}
		if len(c.Events) >= wire.MaxCallEvents || len(c.Events) > 0 && size > wire.MaxCallBytes {
			break
		}
		c.Events = append(c.Events, *ev)
	}
	return c
}

// heard obeys the leader's own word. It never starts anything.
func (s *shim) heard(ack *wire.ShimAck, sent time.Duration) {
	if ack.Lease > 0 {
		s.lease.renew(&AgentMessage{SentAt: int64(sent), Lease: ack.Lease, Orphan: ack.Orphan, Class: ack.Class}, s.now())
	}
	s.ack(ack.Acked)
	if o := ack.Stop; o != nil {
		if key := fmt.Sprint(s.journal.Generation, o.Grace, o.Reason); key != s.stopHeard {
			s.stopHeard = key
			s.stop(o)
		}
	}
	if s.next != nil && s.next.spec.Generation <= ack.Over {
		s.dropNext(attemptOver)
	}
	if a := s.att; a.active() && !a.over && a.spec.Generation <= ack.Over {
		grace := ack.Grace.D()
		if grace <= 0 {
			grace = defaultGone
		}
		s.end(endOrder{grace: min(grace, maxSpan), reason: attemptOver, quiet: true})
	}
	if p := ack.Proposal; p != nil {
		s.propose(ack.Generation, p)
	}
	for i := range ack.Verdicts {
		s.verdict(&ack.Verdicts[i])
	}
	if ack.Verified != 0 {
		s.verified(ack.Verified)
	}
	s.errands.take(ack.Tasks)
	if ack.End {
		s.finish("the allocation is not wanted any more")
	}
}

const attemptOver = "the attempt is over"

// WriteAccess hands the access of a node's shims over: a file that its owner alone can
// read, replaced as a whole.
func WriteAccess(path string, a link.Access) error {
	b, err := json.Marshal(a)
	if err != nil {
		return errors.New("encode the access to the bus")
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write the access to the bus: %w", err)
	}
	if err := os.Chmod(tmp, 0o600); err != nil {
		return fmt.Errorf("write the access to the bus: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write the access to the bus: %w", err)
	}
	return nil
}
