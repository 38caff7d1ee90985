package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/pack"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	packageFolder = "packages"
	archiveSuffix = ".tar.zst"
	// packageCache is what archives may take here beside those that are in use, and
	// keepReady how many unpacked ones wait for a job.
	packageCache = 4 << 30
	keepReady    = 4
	maxFetches   = 2 // at once: each writes to this node's disk
	// fetchPatience is how long a fetch goes on without a single piece from the head.
	fetchPatience = 2 * time.Minute
)

// packages fetches the packages of jobs from the head and unpacks them. In its folder are
// verified archives, <hash>.tar.zst; unpacked copies that no allocation has taken yet,
// <hash>; and, under other names, what is being made, which the next life removes.
type packages struct {
	a    *Agent
	slot chan struct{}
	made atomic.Uint64 // numbers what is being made

	mu    sync.Mutex
	fetch map[string]*fetch // under way
	// ready guards the copies that wait: one is looked at, or taken, not both.
	ready sync.Mutex
}

// fetch is one package on its way here.
type fetch struct {
	over chan struct{}
	err  error // once over
	done atomic.Int64
	size atomic.Int64
}

func (f *fetch) progress() *wire.Fetch { return &wire.Fetch{Done: f.done.Load(), Size: f.size.Load()} }

// openPackages removes what a former life did not finish. Copies that wait go too: nobody
// made them durable.
func (a *Agent) openPackages() error {
	a.packages = &packages{a: a, slot: make(chan struct{}, maxFetches), fetch: map[string]*fetch{}}
	dir := a.packages.dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of packages: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the folder of packages: %w", err)
	}
	for _, e := range entries {
		if hash, ok := strings.CutSuffix(e.Name(), archiveSuffix); ok && pack.ValidHash(hash) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			a.Logger.Warn("what a former life left of a package could not be removed", "name", e.Name(), "err", err)
		}
	}
	return nil
}

func (p *packages) dir() string { return filepath.Join(p.a.StateDir, packageFolder) }

func (p *packages) archive(hash string) string { return filepath.Join(p.dir(), hash+archiveSuffix) }

// temp is a name for what is being made.
func (p *packages) temp(hash string) string {
	return filepath.Join(p.dir(), fmt.Sprintf("%.16s-%d.part", hash, p.made.Add(1)))
}

// start makes a package come here, or joins whoever has started that.
func (p *packages) start(ctx context.Context, hash string) *fetch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.fetch[hash]; f != nil {
		return f
	}
	f := &fetch{over: make(chan struct{})}
	p.fetch[hash] = f
	p.a.spawn(func() {
		f.err = p.bring(ctx, hash, f)
		p.mu.Lock()
		delete(p.fetch, hash)
		p.mu.Unlock()
		close(f.over)
	})
	return f
}

// bring returns when the archive is here.
func (p *packages) bring(ctx context.Context, hash string, f *fetch) error {
	if !pack.ValidHash(hash) {
		return fmt.Errorf("%.80q is no SHA-256 in 64 hex digits", hash)
	}
	select {
	case p.slot <- struct{}{}:
		defer func() { <-p.slot }()
	case <-ctx.Done():
		return ctx.Err()
	}
	now := p.a.Clock.Now()
	if os.Chtimes(p.archive(hash), now, now) == nil {
		return nil // used now
	}
	err := p.download(ctx, hash, f)
	p.sweep(hash)
	return err
}

// download writes the archive beside its place, and moves it there when it is whole.
func (p *packages) download(ctx context.Context, hash string, f *fetch) (err error) {
	temp := p.temp(hash)
	w, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make a file for it: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	h := sha256.New()
	err = p.pieces(ctx, hash, f, io.MultiWriter(h, w))
	if err == nil && hex.EncodeToString(h.Sum(nil)) != hash {
		err = errors.New("what the head sent does not have that hash: the head's copy is damaged")
	}
	if err == nil {
		err = w.Sync()
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp, p.archive(hash))
	}
	return err
}

// pieces asks the head for one piece after the other. A head that is away, or another one
// that leads by now, is waited for; the pieces that are here stay.
func (p *packages) pieces(ctx context.Context, hash string, f *fetch, w io.Writer) error {
	var wait backoff
	heard := p.a.Clock.Boot()
	for {
		var piece wire.PackagePiece
		ask := wire.PackageRequest{Hash: hash, Offset: f.done.Load()}
		err := p.a.call(ctx, wire.HeadPackage+p.a.NodeID, callTimeout, ask, &piece)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (p.a.Clock.Boot()-heard > fetchPatience || errors.Is(err, bus.ErrDenied)):
			return fmt.Errorf("ask the head for it: %w", err)
		case err != nil:
			if err := p.a.Clock.Sleep(ctx, wait.next()); err != nil {
				return err
			}
			continue
		case piece.Error != "":
			return errors.New("the head does not give it: " + clip(piece.Error))
		case piece.Size < 1 || piece.Size > pack.MaxArchive:
			return fmt.Errorf("it has %d bytes; at most %d are taken (package-archive)", piece.Size, int64(pack.MaxArchive))
		case ask.Offset+int64(len(piece.Data)) > piece.Size || len(piece.Data) == 0 && ask.Offset < piece.Size:
			return errors.New("the head sent a piece that does not fit")
		}
		wait.reset()
		heard = p.a.Clock.Boot()
		f.size.Store(piece.Size)
		if _, err := w.Write(piece.Data); err != nil {
			return fmt.Errorf("write it: %w", err)
		}
		if f.done.Add(int64(len(piece.Data))) == piece.Size {
			return nil
		}
	}
}

// unpack makes dir, on the same file system, a copy of its own of a package whose archive
// is here. It is there whole or not at all.
func (p *packages) unpack(ctx context.Context, hash, dir string) error {
	p.ready.Lock()
	err := os.Rename(filepath.Join(p.dir(), hash), dir)
	p.ready.Unlock()
	if err == nil {
		return nil
	}
	temp := p.temp(hash)
	if err := p.unpackTo(ctx, hash, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		os.RemoveAll(temp)
		return fmt.Errorf("move the copy to its place: %w", err)
	}
	return nil
}

func (p *packages) unpackTo(ctx context.Context, hash, dir string) error {
	f, err := os.Open(p.archive(hash))
	if err != nil {
		return fmt.Errorf("read the package: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	err = pack.Unpack(ctx, io.TeeReader(f, h), dir, pack.Limits{})
	if err != nil && ctx.Err() != nil {
		return err
	}
	// What lies on a disk for weeks is read again before it is believed.
	if _, rest := io.Copy(h, f); rest != nil || hex.EncodeToString(h.Sum(nil)) != hash {
		os.RemoveAll(dir)
		os.Remove(p.archive(hash)) // fetched anew the next time
		return fmt.Errorf("the copy on this node was damaged and is fetched anew: %w", pack.ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("unpack it: %w", err)
	}
	return nil
}

// look calls f with a folder that holds a copy of a package, which is made if none waits.
func (p *packages) look(ctx context.Context, hash string, f func(dir string) error) error {
	p.ready.Lock()
	defer p.ready.Unlock()
	dir := filepath.Join(p.dir(), hash)
	if _, err := os.Lstat(dir); err != nil {
		temp := p.temp(hash)
		if err := p.unpackTo(ctx, hash, temp); err != nil {
			return err
		}
		if err := os.Rename(temp, dir); err != nil {
			os.RemoveAll(temp)
			return fmt.Errorf("move the copy to its place: %w", err)
		}
	}
	return f(dir)
}

// sweep bounds what is kept: the archives that were used last, within packageCache, and
// the newest copies that nobody has taken. keep was just fetched.
func (p *packages) sweep(keep string) {
	p.ready.Lock()
	defer p.ready.Unlock()
	entries, err := os.ReadDir(p.dir())
	if err != nil {
		return
	}
	type old struct {
		name string
		size int64
		used time.Time
	}
	var archives, copies []old
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		x := old{e.Name(), info.Size(), info.ModTime()}
		switch hash, ok := strings.CutSuffix(e.Name(), archiveSuffix); {
		case ok && hash != keep:
			archives = append(archives, x)
		case pack.ValidHash(e.Name()) && e.Name() != keep:
			copies = append(copies, x)
		}
	}
	newest := func(a, b old) int { return cmp.Or(b.used.Compare(a.used), strings.Compare(a.name, b.name)) }
	slices.SortFunc(archives, newest)
	slices.SortFunc(copies, newest)
	total := int64(0)
	for _, x := range archives {
		if total += x.size; total > packageCache {
			os.Remove(filepath.Join(p.dir(), x.name)) // who reads it has it open
		}
	}
	for _, x := range copies[min(len(copies), keepReady):] {
		os.RemoveAll(filepath.Join(p.dir(), x.name))
	}
}
