package hostile

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What all tests start: a copy of the binary, so that a build beside them changes
// nothing, the misbehaving programs, and a Python with the rank helper.
var troupeBin, hostileBin, pythonBin, helperPath string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "troupe-hostile-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	root, err := filepath.Abs("../..")
	if err != nil {
		return 1, err
	}
	from := os.Getenv("TROUPE_BIN")
	if from == "" {
		from = filepath.Join(root, "bin", "troupe")
	}
	troupeBin = filepath.Join(dir, "troupe")
	if err := copyProgram(from, troupeBin); err != nil {
		return 1, fmt.Errorf("%w; run `make build` first", err)
	}
	hostileBin = filepath.Join(dir, "hostile")
	out, err := exec.Command("go", "build", "-o", hostileBin, "../programs/hostile").CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("build the hostile programs: %w: %s", err, out)
	}
	name := os.Getenv("TROUPE_PYTHON")
	if name == "" {
		name = "python3"
	}
	// The interpreter itself: a wrapper that chooses one would be a rank's first child.
	out, err = exec.Command(name, "-c", "import sys; print(sys.executable, end='')").Output()
	if err != nil {
		return 1, fmt.Errorf("find the interpreter of %s: %w", name, err)
	}
	pythonBin = string(out)
	helperPath = filepath.Join(root, "sdk", "python")
	return m.Run(), nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
