package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// outcome says how attending a job came to its end.
type outcome int

const (
	ended    outcome = iota // by itself
	stopped                 // by a signal to this process
	timedOut                // by --timeout
	detached                // it goes on
)

// attendance is how a job is attended.
type attendance struct {
	signals []string // that end it in order, by name
	detach  bool     // SIGQUIT leaves it running
	// pass sends SIGUSR1 and SIGUSR2 on; default: to every rank of the job.
	pass func(syscall.Signal)
}

// firstLine says what the keys do before anything else is said.
func (a *app) firstLine(j api.Job) {
	a.note("job %s; Ctrl-C stops it, Ctrl-C again at once ends it by force, Ctrl-\\ detaches", j.ID)
}

func (a *app) tellDetached(j api.Job) {
	a.note("detached; the job goes on. Follow it with: troupe job logs -f %s; stop it with: troupe job stop %s", j.ID, j.ID)
}

// ends says whether a signal ends the job. One that whoever started this command had
// ignored stays so: nohup means what it says.
func (t *attendance) ends(s syscall.Signal) bool {
	return slices.Contains(t.signals, unix.SignalName(s)) && !signal.Ignored(s)
}

// listen starts taking signals: those that end the job, those that go on to the ranks,
// and SIGQUIT.
func (t *attendance) listen() chan os.Signal {
	sigs := make(chan os.Signal, 16)
	take := []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT}
	for _, name := range t.signals {
		if n := unix.SignalNum(name); n > 0 && t.ends(n) {
			take = append(take, n)
		}
	}
	signal.Notify(sigs, take...)
	return sigs
}

// attend follows a job that this process owns. Signals stop it, detach from it, or go
// on to its ranks.
func (a *app) attend(ctx context.Context, cl *troupe.Client, j api.Job, t attendance) (api.Job, outcome, error) {
	sigs := t.listen()
	defer signal.Stop(sigs)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := newFollower(a, cl, j.ID, logOptions{prefix: prefixFor(j)})
	f.begun[-1] = true // from the first attempt on, even if it is over already
	if !a.people() {
		f.a = &app{out: a.err, err: a.err, format: a.format, quiet: true, attach: a.attach} // stdout is the answer's alone
		if a.attach != nil {
			a.attach.a = f.a
		}
	}
	type end struct {
		j   api.Job
		err error
	}
	done := make(chan end, 1)
	go func() {
		j, err := f.run(ctx)
		done <- end{j, err}
	}()
	var limit <-chan time.Time
	if a.limitT > 0 {
		t := time.NewTimer(a.limitT)
		defer t.Stop()
		limit = t.C
	}
	stop := &stopper{a: a, cl: cl, job: j}
	defer stop.close()
	for {
		select {
		case e := <-done:
			stop.close()
			if e.err == nil && stop.asked > 0 && e.j.State == api.Stopped {
				return e.j, stop.how, nil
			}
			return e.j, ended, e.err
		case <-limit:
			stop.ask(ctx, timedOut)
		case s := <-sigs:
			switch s {
			case syscall.SIGUSR1, syscall.SIGUSR2:
				if sig, ok := s.(syscall.Signal); ok && t.pass != nil {
					go t.pass(sig)
				} else {
					go a.passOn(ctx, cl, j.ID, s)
				}
				continue
			case syscall.SIGQUIT:
				if !t.detach && !t.ends(syscall.SIGQUIT) {
					return j, ended, &exitError{code: 128 + int(syscall.SIGQUIT)} // as if nobody had taken it
				}
			}
			if s != syscall.SIGQUIT || !t.detach || stop.asked > 0 {
				stop.ask(ctx, stopped)
				continue
			}
			d, err := a.disown(ctx, cl, j.ID)
			if err != nil {
				a.note("not detached: %s", clean(a.problemOf(err).Detail))
				continue
			}
			cancel()
			<-done
			return d, detached, nil
		}
	}
}

// passOn sends a signal to the main processes of the ranks.
func (a *app) passOn(ctx context.Context, cl *troupe.Client, job string, s os.Signal) {
	sig, _ := s.(syscall.Signal)
	name := unix.SignalName(sig)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := cl.SignalJob(ctx, job, name); err != nil && ctx.Err() == nil {
		a.note("%s did not reach the ranks: %s", name, clean(a.problemOf(err).Detail))
	}
}

// disown makes a job outlive this process.
func (a *app) disown(ctx context.Context, cl *troupe.Client, id string) (api.Job, error) {
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return cl.DisownJob(dctx, id)
}

// stopper ends the job that a foreground command owns: first gently, then by force.
type stopper struct {
	a     *app
	cl    *troupe.Client
	job   api.Job
	asked int
	how   outcome
	tick  *time.Ticker
	quit  chan struct{}
}

func (s *stopper) ask(ctx context.Context, how outcome) {
	s.asked++
	grace := time.Duration(-1)
	switch s.asked {
	case 1:
		s.how = how
		s.a.note("stopping %s; after %s, or with Ctrl-C again, it is ended by force", s.job.ID, s.job.Spec.ShutdownTimeout)
		s.countdown(s.job.Spec.ShutdownTimeout.D())
	case 2:
		grace = 0
		s.close()
		s.a.note("ending %s by force", s.job.ID)
	default:
		return
	}
	reason := "interrupted in the foreground"
	if how == timedOut {
		reason = "its --timeout is over"
	}
	go func() {
		if _, err := s.cl.StopJob(context.WithoutCancel(ctx), s.job.ID, grace, reason); err != nil {
			s.a.note("stop: %s", clean(s.a.problemOf(err).Detail))
		}
	}()
}

// countdown redraws one line on a terminal until the grace is over.
func (s *stopper) countdown(grace time.Duration) {
	f, ok := s.a.err.(*os.File)
	if !ok || !isTerminal(f) || s.a.quiet || s.a.machine() {
		return
	}
	until := time.Now().Add(grace)
	s.tick, s.quit = time.NewTicker(time.Second), make(chan struct{})
	go func(tick *time.Ticker, quit chan struct{}) {
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				left := time.Until(until).Round(time.Second)
				if left < 0 {
					return
				}
				_, _ = fmt.Fprintf(f, "\r\x1b[Kended by force in %s\r", left)
			}
		}
	}(s.tick, s.quit)
}

func (s *stopper) close() {
	if s.quit != nil {
		s.tick.Stop()
		close(s.quit)
		s.quit = nil
		_, _ = io.WriteString(s.a.err, "\r\x1b[K") // the line that counts down
	}
}
