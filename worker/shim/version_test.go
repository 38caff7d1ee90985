package shim_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// frames are what a side of the agent socket's version 1 has said, word by word.
func frames(t *testing.T, name string, fill map[string]string) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/v1/" + name)
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for k, v := range fill {
		s = strings.ReplaceAll(s, k, v)
	}
	return strings.Split(strings.TrimSpace(s), "\n")
}

func sayRaw(t *testing.T, c net.Conn, frame string) {
	t.Helper()
	b := binary.BigEndian.AppendUint32(nil, uint32(len(frame)))
	if _, err := c.Write(append(b, frame...)); err != nil {
		t.Fatal(err)
	}
}

// An agent of the version before drives a shim of this one through the whole life of an
// attempt: an upgrade of the agent may be taken back while ranks run.
func TestOlderAgent(t *testing.T) {
	a := newAgent(t, "fallback")
	a.noAck = true
	c, err := net.Dial("unix", a.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	say := frames(t, "agent.jsonl", map[string]string{"SENT": fmt.Sprint(shim.BootTime())})
	for _, f := range say[:4] { // hello, renew, start, status
		sayRaw(t, c, f)
	}
	a.gen = 1
	a.wait(wire.EventStarted)
	sayRaw(t, c, say[4]) // stop
	a.wait(wire.EventEnded)
	if x := a.exits(1)[0]; x == nil || x.Code != 3 && x.Signal != 15 || !x.ByShim { // its trap may not be set yet
		t.Errorf("the rank was not told to end by TERM: %+v", x)
	}
	last := a.events[len(a.events)-1].Seq
	sayRaw(t, c, strings.ReplaceAll(say[5], "SEQ", fmt.Sprint(last)))
	sayRaw(t, c, say[6]) // end
	a.until("the last word", func() bool { return a.event(wire.EventGone, 0) != nil })
	if err := a.c.Ack(a.events[len(a.events)-1].Seq); err != nil {
		t.Log(err) // it may be gone already
	}
	<-a.exit
	a.proc = nil
}

// Files of the version before are read, and what is written now can be read by it: their
// format has not changed, only the frames of the agent socket have.
func TestFilesOfTheVersionBefore(t *testing.T) {
	cfg, err := shim.ReadConfig("testdata/v1/shim.json")
	if err != nil || cfg.Alloc != "a-1.1" || cfg.Bus != "" {
		t.Errorf("%+v %v", cfg, err)
	}
	j, err := shim.ReadJournal("testdata/v1")
	if err != nil || j.Seq != 2 || len(j.Unacked) != 1 || j.Unacked[0].Exit.Code != 3 {
		t.Errorf("%+v %v", j, err)
	}
	a := newAgent(t, "fallback")
	now, err := shim.ReadConfig(a.cfg.Dir + "/" + shim.ConfigFile)
	if err != nil || now.Version != 1 {
		t.Errorf("a configuration of version %d, %v: an older agent refuses it", now.Version, err)
	}
	if j, err := shim.ReadJournal(a.cfg.Dir); err != nil || j.Version != 1 {
		t.Errorf("a journal of version %d, %v: an older agent takes its shim for dead", j.Version, err)
	}
}
