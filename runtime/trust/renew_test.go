package trust

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/clock"
)

// A certificate of 24 h is renewed 16 h after it was granted, again and again, and what
// fails is tried again each minute.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := authority(t)
		i := member(t, a, time.Now())
		begin := time.Now()
		var mu sync.Mutex // of what both goroutines use
		var asked []time.Duration
		failing := 0
		r := Renewer{
			Identity: i, Clock: clock.Real(), Logger: slog.New(slog.DiscardHandler),
			Ask: func(_ context.Context, csr []byte) ([][]byte, error) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, time.Since(begin).Round(time.Second))
				if failing > 0 {
					failing--
					return nil, errors.New("no head answers")
				}
				_, chain, err := a.IssueNode(csr, time.Now())
				return chain, err
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		time.Sleep(15*time.Hour + 59*time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(asked) != 0 {
			t.Errorf("asked %v, before two thirds of the life", asked)
		}
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		mu.Lock()
		failing = 3
		mu.Unlock()
		time.Sleep(16*time.Hour + 10*time.Minute)
		synctest.Wait()
		mu.Lock()
		told := slices.Clone(asked)
		mu.Unlock()
		want := []time.Duration{16 * time.Hour, 32 * time.Hour, 32*time.Hour + time.Minute, 32*time.Hour + 2*time.Minute, 32*time.Hour + 3*time.Minute}
		if len(told) != len(want) {
			t.Fatalf("asked at %v, want %v", told, want)
		}
		for k := range want {
			if d := told[k] - want[k]; d < -5*time.Second || d > 5*time.Second {
				t.Errorf("asked at %v, want %v", told, want)
			}
		}
		if !i.Valid(time.Now().Add(23 * time.Hour)) {
			t.Error("the certificate is not a new one")
		}
		// The listener of a head renews its own.
		l, err := NewListener(a, RoleBus, Names{}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		first, err := l.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(17 * time.Hour)
		if next, err := l.Certificate(); err != nil || next == first {
			t.Errorf("the listener shows its old certificate; %v", err)
		}
		cancel()
		<-done
	})
}

// A renewal that is of another cluster is not taken, whoever answers.
func TestRenewalKeepsTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, other := authority(t), authority(t)
		i := member(t, a, time.Now())
		r := Renewer{
			Identity: i, Clock: clock.Real(), Logger: slog.New(slog.DiscardHandler),
			Ask: func(_ context.Context, csr []byte) ([][]byte, error) {
				_, chain, err := other.IssueNode(csr, time.Now())
				return chain, err
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Hour)
		defer cancel()
		r.Run(ctx)
		if DigestOf(i.Root()) != a.Digest() {
			t.Error("the node changed its cluster")
		}
	})
}
