package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
)

// saver is the shim's side of its saver process, which is started at the first
// request and again after it died. It may be used from any goroutine.
type saver struct {
	rip    *reaper
	binary string
	cookie string

	mu     sync.Mutex
	proc   int
	in     *os.File
	lastID uint64
	calls  map[uint64]chan SaverReply
}

const saverNice = 5 // below the ranks: a save must not slow the next step down

// call sends one request and waits for its reply, the saver's death or ctx.
func (v *saver) call(ctx context.Context, req SaverRequest) (SaverReply, error) {
	ch := make(chan SaverReply, 1)
	v.mu.Lock()
	if err := v.startLocked(); err != nil {
		v.mu.Unlock()
		return SaverReply{}, err
	}
	v.lastID++
	req.ID = v.lastID
	v.calls[req.ID] = ch
	in := v.in
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		delete(v.calls, req.ID)
		v.mu.Unlock()
	}()
	b, err := json.Marshal(req)
	if err != nil {
		return SaverReply{}, err
	}
	// One write of one line: os.File serialises writers.
	if _, err := in.Write(append(b, '\n')); err != nil {
		return SaverReply{}, fmt.Errorf("hand work to the saver: %w", err)
	}
	select {
	case rep := <-ch:
		return rep, nil
	case <-ctx.Done():
		return SaverReply{}, ctx.Err()
	}
}

func (v *saver) pid() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.proc
}

// stop closes the saver's input, which ends it.
func (v *saver) stop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.in != nil {
		v.in.Close()
		v.in = nil
	}
	v.binary = "" // and none is started again
}

func (v *saver) startLocked() error {
	if v.proc != 0 && v.in != nil {
		return nil
	}
	if v.binary == "" {
		return errors.New("this shim has no saver: its configuration names no binary")
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the saver: %w", err)
	}
	defer inR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		inW.Close()
		return fmt.Errorf("start the saver: %w", err)
	}
	defer outW.Close()
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{inR.Fd(), outW.Fd(), 2},
		Env: append([]string{process.CookieEnv + "=" + v.cookie, "PATH=" + defaultPath}, storeEnv()...),
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	calls := map[uint64]chan SaverReply{}
	pid, err := v.rip.start(func() (int, error) {
		return syscall.ForkExec(v.binary, []string{"troupe-saver", "saver"}, attr)
	}, func(ws unix.WaitStatus) {
		log.Printf("the saver ended: %s", endText(ws, false))
		go v.lost(calls)
	})
	if err != nil {
		inW.Close()
		outR.Close()
		return fmt.Errorf("start the saver %s: %w", v.binary, err)
	}
	_ = unix.Setpriority(unix.PRIO_PGRP, pid, saverNice)
	v.proc, v.in, v.calls = pid, inW, calls
	go v.read(outR, calls)
	return nil
}

func (v *saver) read(out *os.File, calls map[uint64]chan SaverReply) {
	defer out.Close()
	dec := json.NewDecoder(out)
	for {
		var rep SaverReply
		if err := dec.Decode(&rep); err != nil {
			return // its death is told by the reaper
		}
		v.mu.Lock()
		ch := calls[rep.ID]
		delete(calls, rep.ID)
		v.mu.Unlock()
		if ch != nil {
			ch <- rep
		}
	}
}

// lost answers everything that a dead saver left open.
func (v *saver) lost(calls map[uint64]chan SaverReply) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, ch := range calls {
		ch <- SaverReply{ID: id, Code: "io", Error: "the saver ended before the work was done", lost: true}
		delete(calls, id)
	}
	v.proc = 0
	if v.in != nil {
		v.in.Close()
		v.in = nil
	}
}
