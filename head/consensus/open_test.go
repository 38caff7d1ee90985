package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestInitAndOpenErrors is the table of what is refused, with what kind of error.
func TestInitAndOpenErrors(t *testing.T) {
	openErr := func(c Config) error {
		n, err := Open(c, &testMachine{})
		if err == nil {
			n.Close()
		}
		return err
	}
	write := func(t *testing.T, c Config, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T) error
		want error
		text string // must be in the message
	}{
		{"open empty folder", func(t *testing.T) error {
			dir := t.TempDir()
			err := openErr(testConfig(dir))
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			return err
		}, ErrNotInitialized, "troupe head init"},
		{"open absent folder names join", func(t *testing.T) error {
			return openErr(testConfig(filepath.Join(t.TempDir(), "no")))
		}, ErrNotInitialized, "troupe head start --join"},
		{"init twice", func(t *testing.T) error { return Init(initDir(t)) }, ErrAlreadyInitialized, "troupe head start"},
		{"open while open", func(t *testing.T) error {
			c := initDir(t)
			open(t, c)
			return openErr(c)
		}, ErrLocked, fmt.Sprintf("process %d", os.Getpid())},
		{"init while open", func(t *testing.T) error {
			c := initDir(t)
			open(t, c)
			return Init(c)
		}, ErrLocked, "in use"},
		{"newer format", func(t *testing.T) error {
			c := initDir(t)
			write(t, c, fileFormat, "2\n")
			return openErr(c)
		}, ErrNewerFormat, "format 2"},
		{"init over newer format", func(t *testing.T) error {
			c := testConfig(t.TempDir())
			write(t, c, fileFormat, "9\n")
			return Init(c)
		}, ErrNewerFormat, "format 9"},
		{"format is no number", func(t *testing.T) error {
			c := initDir(t)
			write(t, c, fileFormat, "two")
			return openErr(c)
		}, ErrDamagedFolder, fileFormat},
		{"format is missing", func(t *testing.T) error {
			c := initDir(t)
			os.Remove(filepath.Join(c.Dir, fileFormat))
			return openErr(c)
		}, ErrDamagedFolder, fileFormat},
		{"node id is missing", func(t *testing.T) error {
			c := initDir(t)
			os.Remove(filepath.Join(c.Dir, fileNode))
			return openErr(c)
		}, ErrDamagedFolder, fileNode},
		{"another node's folder", func(t *testing.T) error {
			c := initDir(t)
			c.NodeID = "somebody"
			return openErr(c)
		}, ErrConfig, "somebody"},
		{"meta is missing", func(t *testing.T) error {
			c := initDir(t)
			os.Remove(filepath.Join(c.Dir, dirWAL, fileMeta))
			return openErr(c)
		}, ErrDamagedFolder, fileMeta},
		{"meta is flipped", func(t *testing.T) error {
			c := initDir(t)
			flip(t, filepath.Join(c.Dir, dirWAL, fileMeta), 40, 3)
			return openErr(c)
		}, ErrDamagedFolder, "checksum"},
		{"log is missing beside snapshots", func(t *testing.T) error {
			c := initDir(t)
			n, _ := open(t, c)
			closeNode(t, n)
			os.RemoveAll(filepath.Join(c.Dir, dirWAL))
			if err := Init(c); !errors.Is(err, ErrDamagedFolder) {
				t.Errorf("Init: %v", err)
			}
			return openErr(c)
		}, ErrDamagedFolder, dirWAL},
		{"folder under a file", func(t *testing.T) error {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return Init(testConfig(filepath.Join(file, "raft")))
		}, ErrStorage, "the operating system refused"},
		{"open under a file", func(t *testing.T) error {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return openErr(testConfig(filepath.Join(file, "raft")))
		}, ErrStorage, "the operating system refused"},
		{"no folder", func(*testing.T) error { return Init(Config{}) }, ErrConfig, "no folder"},
		{"commit timeout too long", func(*testing.T) error {
			return Init(Config{Dir: "x", Heartbeat: 100 * time.Millisecond, CommitTimeout: 25 * time.Millisecond})
		}, ErrConfig, "quarter"},
		{"short trailing logs", func(*testing.T) error {
			return Init(Config{Dir: "x", SnapshotThreshold: 100, TrailingLogs: 199})
		}, ErrConfig, "trailing"},
		{"one snapshot", func(*testing.T) error { return Init(Config{Dir: "x", Retain: 1}) }, ErrConfig, "retained"},
		{"three voters without transport", func(*testing.T) error {
			return Init(Config{Dir: "x", Peers: []Peer{{"a", "a"}, {"b", "b"}, {"c", "c"}}})
		}, ErrConfig, "transport"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.do(t)
			if !errors.Is(err, tc.want) {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			if !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("error %q does not say %q", err, tc.text)
			}
		})
	}
}

// TestInitSurvivesInterruption: what a crash in the middle of Init leaves is no
// cluster, and Init can be repeated.
func TestInitSurvivesInterruption(t *testing.T) {
	c := initDir(t)
	if err := os.Rename(filepath.Join(c.Dir, dirWAL), filepath.Join(c.Dir, dirWALNew)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c, &testMachine{}); !errors.Is(err, ErrNotInitialized) {
		t.Fatalf("Open: %v", err)
	}
	if err := Init(c); err != nil {
		t.Fatalf("Init again: %v", err)
	}
	n, _ := open(t, c)
	lead(t, n)
	propose(t, n, "a")
}
