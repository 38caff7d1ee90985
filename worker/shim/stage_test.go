package shim_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// take asks for the rank's buffer and returns the reply with the file that came with it.
func (h *helper) take(size int64, have string) (*shim.RankReply, *os.File) {
	h.t.Helper()
	if err := shim.WriteFrame(h.c, shim.MaxRankFrame, shim.RankRequest{Op: "buffer", Size: size, Buffer: have}); err != nil {
		h.t.Fatal(err)
	}
	h.c.SetReadDeadline(time.Now().Add(patience))
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := h.c.(*net.UnixConn).ReadMsgUnix(buf, oob)
	if err != nil || n < 4 || n < 4+int(binary.BigEndian.Uint32(buf)) {
		h.t.Fatalf("buffer: %d bytes, %v", n, err)
	}
	rep := &shim.RankReply{}
	if err := json.Unmarshal(buf[4:n], rep); err != nil {
		h.t.Fatal(err)
	}
	if oobn == 0 {
		return rep, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		h.t.Fatalf("control message: %v", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		h.t.Fatalf("descriptors: %v %v", fds, err)
	}
	f := os.NewFile(uintptr(fds[0]), "buffer")
	h.t.Cleanup(func() { f.Close() })
	return rep, f
}

// fill puts data into a new buffer and returns it.
func (h *helper) fill(size int64, data []byte) *shim.RankReply {
	h.t.Helper()
	rep, f := h.take(size, "")
	if !rep.OK || f == nil {
		h.t.Fatalf("buffer: %+v", rep)
	}
	if _, err := f.WriteAt(data, 128); err != nil {
		h.t.Fatal(err)
	}
	return rep
}

func staged(step, length int64) shim.RankRequest {
	return shim.RankRequest{Op: "stage", Step: step, Files: []shim.RankFile{
		{Path: "rank-0/deep/model.pt", Part: "model", Staged: true, Offset: 128, Length: length},
	}}
}

func (a *agent) staging(deadline time.Duration) (*wire.AttemptSpec, *helper) {
	a.t.Helper()
	s := a.saving(1)
	s.Checkpoint.Deadline = unit.Duration(deadline)
	a.start(s)
	a.wait(wire.EventStarted)
	h := a.helper()
	h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: a.gen})
	return s, h
}

func (a *agent) savers() []int {
	var list []int
	for _, p := range process.Find(process.Target{Cookie: a.cfg.Cookie}) {
		if isSaver(p.PID) {
			list = append(list, p.PID)
		}
	}
	return list
}

// What a rank has staged is prepared although the rank is gone, byte for byte (P4).
func TestStagedOutlivesItsRank(t *testing.T) {
	a := newAgent(t, "fallback")
	s, h := a.staging(0)
	data := bytes.Repeat([]byte("weights "), 1<<17)
	first := h.fill(int64(len(data))+200, data)
	h.ok(staged(7, int64(len(data))))
	h.c.Close()
	a.c.Stop(&wire.StopOrder{Reason: "test"})
	a.wait(wire.EventEnded)
	a.until("prepared", func() bool { return len(a.saves) > 0 })
	want := wire.PreparedFile{Path: "rank-0/deep/model.pt", Length: int64(len(data)), Digest: checkpoint.DigestBytes(data), Part: "model"}
	if len(a.staged) != 1 || a.staged[0].Step != 7 || a.staged[0].Rank != 0 || len(a.staged[0].Files) != 0 || a.staged[0].Dir != "" {
		t.Errorf("staged: %+v", a.staged)
	}
	p := a.saves[0]
	if p.Step != 7 || p.Generation != 1 || p.Rank != 0 || p.Abandoned != "" || len(p.Files) != 1 || p.Files[0] != want {
		t.Errorf("prepared: %+v", p)
	}
	if got, err := os.ReadFile(filepath.Join(p.Dir, p.Files[0].Path)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file: %d bytes, %v", len(got), err)
	}

	// The next attempt finds the same memory, still warm.
	s2 := a.saving(1)
	s2.Checkpoint = s.Checkpoint
	a.start(s2)
	a.wait(wire.EventStarted)
	h = a.helper()
	h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: 2})
	rep, f := h.take(10, "")
	if rep.Buffer != first.Buffer || rep.Size != first.Size || f == nil {
		t.Errorf("buffer of the next attempt: %+v, want %+v", rep, first)
	}
	if err := f.Truncate(0); err == nil {
		t.Error("the rank could shorten its buffer")
	}
	if rep, f = h.take(rep.Size, rep.Buffer); !rep.OK || f != nil {
		t.Errorf("a buffer that the rank has came again: %+v", rep)
	}
	if rep, f = h.take(rep.Size+1, rep.Buffer); !rep.OK || f == nil || rep.Size <= first.Size || rep.Buffer == first.Buffer {
		t.Errorf("a larger buffer: %+v", rep)
	}
}

func TestStageRefuses(t *testing.T) {
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Limits.Memory = 1 << 20 })
	_, h := a.staging(0)
	h.refused("usage", staged(1, 10)) // no buffer
	for size, code := range map[int64]string{0: "usage", -1: "usage", 1<<20 + 1: "memory", 1 << 62: "memory"} {
		h.refused(code, shim.RankRequest{Op: "buffer", Size: size})
	}
	h.fill(4096, []byte("weights"))
	for _, f := range []shim.RankFile{
		{Path: "rank-0/m", Staged: true, Offset: -1, Length: 1},
		{Path: "rank-0/m", Staged: true, Offset: 0, Length: -1},
		{Path: "rank-0/m", Staged: true, Offset: 4096, Length: 1},
		{Path: "rank-0/m", Staged: true, Offset: 1, Length: 1<<63 - 1},
	} {
		h.refused("usage", shim.RankRequest{Op: "stage", Step: 1, Files: []shim.RankFile{f}})
	}
	h.refused("usage", shim.RankRequest{Op: "stage", Step: -1})
	if len(a.saves) != 0 {
		t.Fatalf("told: %+v", a.saves)
	}
	// What only the saver can see drops the step, with the reason.
	for i, path := range []string{"../x", "/etc/passwd", "rank-1/m", "rank-0", ""} {
		step := int64(10 + i)
		h.ok(shim.RankRequest{Op: "stage", Step: step, Files: []shim.RankFile{{Path: path, Staged: true, Length: 1}}})
		a.until("abandoned", func() bool {
			return len(a.saves) > 0 && a.saves[len(a.saves)-1].Step == step
		})
		if p := a.saves[len(a.saves)-1]; p.Abandoned == "" || len(p.Files) != 0 {
			t.Errorf("%q: %+v", path, p)
		}
		a.c.Verdict(&wire.Verdict{Generation: 1, Step: step, State: "dropped"})
	}
}

// A stopped saver stands for a store that hangs: the buffer stays taken, the step is
// given up at the deadline, and what the saver says afterwards does not count.
func TestStageDeadline(t *testing.T) {
	a := newAgent(t, "fallback")
	_, h := a.staging(500 * time.Millisecond)
	h.fill(4096, []byte("weights"))
	h.ok(shim.RankRequest{Op: "begin", Step: 1})
	pids := a.savers()
	if len(pids) != 1 {
		t.Fatalf("savers: %v", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.ok(staged(1, 7))
	h.refused("busy", staged(2, 7))
	h.refused("busy", shim.RankRequest{Op: "buffer", Size: 10, TimeoutMS: 1})
	h.refused("busy", shim.RankRequest{Op: "begin", Step: 2, TimeoutMS: 1})
	if rep := h.ok(shim.RankRequest{Op: "verdict", Step: 1, TimeoutMS: 1}); rep.State != "pending" {
		t.Errorf("verdict: %+v", rep)
	}
	a.until("given up", func() bool { return len(a.saves) > 0 })
	if p := a.saves[0]; p.Step != 1 || p.Abandoned == "" {
		t.Errorf("told: %+v", p)
	}
	h.refused("busy", shim.RankRequest{Op: "buffer", Size: 10}) // waits for the deadline
	if err := unix.Kill(pids[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.ok(shim.RankRequest{Op: "buffer", Size: 10})
	h.ok(staged(2, 7))
	a.until("the next step", func() bool { p := a.saves[len(a.saves)-1]; return p.Step == 2 && p.Abandoned == "" })
	for _, p := range a.saves {
		if p.Step == 1 && p.Abandoned == "" {
			t.Errorf("a step that was given up was told as prepared: %+v", p)
		}
	}
}

// A synchronous save into a store that hangs is given up too, and the rank goes on.
func TestSaveDeadline(t *testing.T) {
	a := newAgent(t, "fallback")
	_, h := a.staging(500 * time.Millisecond)
	h.ok(shim.RankRequest{Op: "begin", Step: 1})
	for _, pid := range a.savers() {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	}
	h.refused("dropped", shim.RankRequest{Op: "prepare", Step: 1})
	a.until("given up", func() bool { return len(a.saves) > 0 && a.saves[0].Abandoned != "" })
	h.refused("dropped", shim.RankRequest{Op: "begin", Step: 2})
	a.until("given up", func() bool { return a.saves[len(a.saves)-1].Step == 2 })
}

// The buffer outlives a saver that is killed: another one does the work again.
func TestStageSurvivesItsSaver(t *testing.T) {
	a := newAgent(t, "fallback")
	_, h := a.staging(0)
	data := bytes.Repeat([]byte("x"), 1<<20)
	h.fill(int64(len(data))+128, data)
	h.ok(shim.RankRequest{Op: "begin", Step: 1})
	for _, pid := range a.savers() {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil { // so that it is killed in the middle
			t.Fatal(err)
		}
		h.ok(staged(1, int64(len(data))))
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	a.until("told", func() bool { return len(a.saves) > 0 })
	p := a.saves[0]
	if p.Abandoned != "" || len(p.Files) != 1 || p.Files[0].Digest != checkpoint.DigestBytes(data) {
		t.Errorf("told: %s", fmt.Sprint(*p))
	}
}

// TestUploadsAreTimed: how long a staged save takes to be committed, after its ranks went
// on, is told with the status; what was dropped, and what nobody staged, is no upload.
func TestUploadsAreTimed(t *testing.T) {
	a := newAgent(t, "fallback")
	_, h := a.staging(0)
	data := []byte("weights")
	h.fill(1000, data)
	for i, verdict := range []string{"committed", "dropped"} {
		step := int64(i + 1)
		a.saves = nil
		h.ok(staged(step, int64(len(data))))
		a.until("prepared", func() bool { return len(a.saves) > 0 })
		a.c.Verdict(&wire.Verdict{Generation: 1, Step: step, State: verdict})
		a.c.Verdict(&wire.Verdict{Generation: 1, Step: step + 10, State: "committed"})
	}
	a.until("a status with the upload", func() bool {
		a.c.Send(shim.AgentMessage{Type: "status"})
		return a.last != nil && a.last.Uploads > 0
	})
	if a.last.Uploads != 1 || a.last.Upload <= 0 {
		t.Errorf("%d uploads took %d ns", a.last.Uploads, a.last.Upload)
	}
}
