package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// NVMLOptions say how NVML is reached.
type NVMLOptions struct {
	// Library is the file name of NVML, by default libnvidia-ml.so.1 in the loader's path.
	Library string
	// Patience is how long a call may take before the driver counts as stuck; default 5 s.
	Patience time.Duration
}

func (o NVMLOptions) patience() time.Duration {
	if o.Patience <= 0 {
		return 5 * time.Second
	}
	return o.Patience
}

// reader is the driver's side of a watched source: its methods may hang.
type reader interface {
	open() error
	read() ([]Device, error)
	close()
}

// watched asks a driver from one goroutine of its own, since calls can hang in the
// kernel for good and closing the library under a call crashes the process. Whoever
// asks waits for a bounded time.
type watched struct {
	patience time.Duration
	asks     chan chan answer
	quit     chan struct{}
	done     chan struct{}
	once     sync.Once

	mu    sync.Mutex
	known []Device // newest that was read
}

type answer struct {
	devices []Device
	err     error
}

// watch starts the goroutine and opens the driver.
func watch(r reader, patience time.Duration) (*watched, error) {
	w := &watched{patience: patience, asks: make(chan chan answer), quit: make(chan struct{}), done: make(chan struct{})}
	opened := make(chan error, 1)
	go w.run(r, opened)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-opened:
		return w, err
	case <-timer.C:
		w.once.Do(func() { close(w.quit) })
		return nil, fmt.Errorf("open NVML: %w within %s", ErrStuck, patience)
	}
}

func (w *watched) run(r reader, opened chan<- error) {
	defer close(w.done)
	if err := r.open(); err != nil {
		opened <- err
		return
	}
	defer r.close()
	opened <- nil
	for {
		select {
		case <-w.quit:
			return
		case reply := <-w.asks:
			d, err := r.read()
			w.mu.Lock()
			if err == nil {
				w.known = d
			}
			w.mu.Unlock()
			reply <- answer{d, err}
		}
	}
}

// Devices implements Source.
func (w *watched) Devices(ctx context.Context) ([]Device, error) {
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	reply := make(chan answer, 1)
	select {
	case w.asks <- reply:
	case <-timer.C:
		return w.stuck()
	case <-w.done:
		return nil, errors.New("read GPUs: the source is closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-reply:
		if a.err != nil {
			return w.doubtful(a.err)
		}
		return append([]Device(nil), a.devices...), nil
	case <-timer.C:
		return w.stuck()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *watched) stuck() ([]Device, error) {
	return w.doubtful(fmt.Errorf("read GPUs: %w within %s", ErrStuck, w.patience))
}

// doubtful returns what was known before with unknown health: a device does not
// vanish from the books because its driver is silent, and is not taken for well.
func (w *watched) doubtful(err error) ([]Device, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil {
		return nil, err
	}
	list := append([]Device(nil), w.known...)
	for i := range list {
		list[i].Health, list[i].Used, list[i].Processes = HealthUnknown, -1, nil
	}
	return list, nil
}

// Close implements Source.
func (w *watched) Close() error {
	w.once.Do(func() { close(w.quit) })
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	select {
	case <-w.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("close NVML: %w within %s; it is left behind", ErrStuck, w.patience)
	}
}
