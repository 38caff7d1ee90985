package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"
)

// noncePrefix begins the name of a proof file at the top of a store. It can be no run:
// those begin with a letter or digit.
const noncePrefix = ".troupe-probe-"

// nonceAge is how old a proof that nobody removed must be before another probe does.
const nonceAge = time.Hour

// NonceName is the name of a nonce's file or object below the store.
func NonceName(nonce string) (string, error) {
	if nonce == "" || len(nonce) > 64 || ValidRun(nonce) != nil {
		return "", badName("nonce %q", trim(nonce))
	}
	return noncePrefix + nonce, nil
}

// WriteNonce implements Store.
func (s *Directory) WriteNonce(_ context.Context, nonce string) error {
	name, err := NonceName(nonce)
	if err != nil {
		return err
	}
	if err := s.fs.MkdirAll(s.root, 0o755); err != nil {
		return fmt.Errorf("store %s: %w", s.root, err)
	}
	s.oldNonces()
	there, err := s.createOnly(s.root, name, []byte(nonce))
	if err == nil && there != nil && string(there) != nonce {
		err = ErrDifferentManifest
	}
	if err != nil {
		return fmt.Errorf("write to store %s: %w", s.root, err)
	}
	return nil
}

// oldNonces removes what earlier probes left when they were cut short; that is
// tidiness, so errors do not matter.
func (s *Directory) oldNonces() {
	entries, err := s.fs.ReadDir(s.root)
	if err != nil {
		return
	}
	newest, err := s.fs.Stat(s.root)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), noncePrefix) {
			continue
		}
		// Both times are the store's own: a node's clock may be anywhere.
		if info, err := e.Info(); err == nil && newest.ModTime().Sub(info.ModTime()) > nonceAge {
			_ = s.fs.Remove(path.Join(s.root, e.Name()))
		}
	}
}

// HasNonce implements Store.
func (s *Directory) HasNonce(_ context.Context, nonce string) (bool, error) {
	name, err := NonceName(nonce)
	if err != nil {
		return false, err
	}
	data, err := readSmall(s.fs, path.Join(s.root, name), 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && string(data) == nonce, err
}

// ForgetNonce implements Store.
func (s *Directory) ForgetNonce(_ context.Context, nonce string) error {
	name, err := NonceName(nonce)
	if err != nil {
		return err
	}
	if err := s.fs.Remove(path.Join(s.root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
