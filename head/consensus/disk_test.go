package consensus

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// faultyDisk fails writes, or holds them.
type faultyDisk struct {
	*walfs.FS
	fail chan error // the next fsync fails with it

	failCreate atomic.Bool   // so does making a segment
	hold       chan struct{} // the next write waits for it
}

func (d *faultyDisk) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := d.FS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return &faultyFile{WritableFile: f, d: d}, nil
}

func (d *faultyDisk) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if d.failCreate.Load() {
		return nil, syscall.ENOSPC
	}
	f, err := d.FS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	return &faultyFile{WritableFile: f, d: d}, nil
}

type faultyFile struct {
	types.WritableFile
	d *faultyDisk
}

func (f *faultyFile) Sync() error {
	select {
	case err := <-f.d.fail:
		return err
	case <-f.d.hold:
		<-f.d.hold
	default:
	}
	return f.WritableFile.Sync()
}

// TestDiskFull: a full disk stops the node with the system's reason; after space was
// made, a restart has everything that was acknowledged.
func TestDiskFull(t *testing.T) {
	for _, when := range []string{"append", "next segment"} {
		t.Run(when, func(t *testing.T) {
			c := initDir(t)
			disk := &faultyDisk{FS: walfs.New(), fail: make(chan error, 1)}
			c.vfs = disk
			n, _ := open(t, c)
			lead(t, n)
			var acked []string
			big := strings.Repeat("x", 1000)
			propose(t, n, big)
			acked = append(acked, big)
			var err error
			if when == "append" {
				disk.fail <- syscall.ENOSPC
				_, err = n.Propose(testCtx(t), []byte("full"))
			} else {
				disk.failCreate.Store(true)
				for range 200 {
					if _, err = n.Propose(testCtx(t), []byte(big)); err != nil {
						break
					}
					acked = append(acked, big)
				}
			}
			if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Propose: %v", err)
			}
			select {
			case err := <-n.Fatal():
				if !errors.Is(err, ErrStorage) || !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("fatal: %v", err)
				}
			case <-time.After(patience):
				t.Fatalf("no fatal error; %+v", n.Stats())
			}
			closeNode(t, n)
			disk.failCreate.Store(false)
			n, m := open(t, c)
			lead(t, n)
			got := m.all()
			if len(got) < len(acked) || !slices.Equal(got[:len(acked)], acked) {
				t.Fatalf("%d entries after the restart, %d were acknowledged", len(got), len(acked))
			}
			propose(t, n, "goes on")
		})
	}
}

// TestStuckAppendWarns: one voter says that its disk is stuck and goes on after.
func TestStuckAppendWarns(t *testing.T) {
	c := initDir(t)
	disk := &faultyDisk{FS: walfs.New(), hold: make(chan struct{})}
	c.vfs = disk
	told := make(chan time.Duration, 1)
	c.OnStuck = func(d time.Duration) { told <- d }
	n, m := open(t, c)
	lead(t, n)
	done := make(chan error, 1)
	go func() { _, err := n.Propose(testCtx(t), []byte("slow")); done <- err }()
	disk.hold <- struct{}{} // the append is in its fsync now
	if d := <-told; d != StuckAppend {
		t.Fatalf("told of %s", d)
	}
	select {
	case err := <-done:
		t.Fatalf("answered while the disk was stuck: %v", err)
	default:
	}
	disk.hold <- struct{}{}
	if err := <-done; err != nil {
		t.Fatalf("Propose: %v", err)
	}
	if got := m.all(); !slices.Equal(got, []string{"slow"}) {
		t.Fatalf("applied %q", got)
	}
}
