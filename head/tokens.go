package head

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/disk"
)

// secret reads a file of 64 hex digits, or makes it.
func secret(path string, create bool) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		s := strings.TrimSpace(string(b))
		if raw, err := hex.DecodeString(s); err != nil || len(raw) != 32 {
			return "", fmt.Errorf("head: %s does not hold 64 hex digits: it is damaged; put back a copy of it", path)
		}
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) || !create {
		return "", fmt.Errorf("head: read %s: %w", path, err)
	}
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", fmt.Errorf("head: draw a secret: %w", err)
	}
	s := hex.EncodeToString(raw[:])
	if err := disk.WriteFileAtomic(disk.OS(), path, []byte(s+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("head: write %s: %w", path, err)
	}
	return s, nil
}

// Secret reads a secret of 64 hex digits in a head's folder, or makes it.
func Secret(dir, file string) (string, error) { return secret(filepath.Join(dir, file), true) }

// ReadToken reads a token file of a head's folder.
func ReadToken(dir, file string) (string, error) { return secret(filepath.Join(dir, file), false) }

// firstEntry is the command that creates the cluster when the log is empty.
func (h *Head) firstEntry() (state.CreateCluster, error) {
	var id [8]byte
	var life [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return state.CreateCluster{}, fmt.Errorf("head: draw an id: %w", err)
	}
	if _, err := rand.Read(life[:]); err != nil {
		return state.CreateCluster{}, fmt.Errorf("head: draw an id: %w", err)
	}
	dir, err := filepath.Abs(filepath.Join(h.opts.Dir, storeDir))
	if err != nil {
		return state.CreateCluster{}, fmt.Errorf("head: the checkpoint store: %w", err)
	}
	// It is there before anybody looks into it: a store that cannot be read holds jobs up.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return state.CreateCluster{}, fmt.Errorf("head: the checkpoint store: %w", err)
	}
	c := state.CreateCluster{Cluster: hex.EncodeToString(id[:]), Life: hex.EncodeToString(life[:]), Store: dir}
	for _, t := range []struct{ file, name, role string }{{AdminTokenFile, "admin", "admin"}, {NodeTokenFile, "node", "node"}} {
		s, err := secret(filepath.Join(h.opts.Dir, t.file), true)
		if err != nil {
			return c, err
		}
		sum := sha256.Sum256([]byte(s))
		c.Tokens = append(c.Tokens, state.Token{Hash: hex.EncodeToString(sum[:]), Name: t.name, Role: t.role})
	}
	return c, nil
}

// checkTokens compares the token files with the cluster's: a wrong one would show much
// later, as a node that cannot join or an admin who is nobody. A file that is not there
// was put away.
func (h *Head) checkTokens() error {
	for file, role := range map[string]string{AdminTokenFile: "admin", NodeTokenFile: "node"} {
		path := filepath.Join(h.opts.Dir, file)
		token, err := secret(path, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if h.control.Load().TokenRole(token) != role {
			return fmt.Errorf("head: %s holds no %s token of this cluster: it was altered, or belongs to another; put back a copy of the file", path, role)
		}
	}
	return nil
}
