package shim

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckStart looks for a command's folder and program as a rank would find them, path
// being the PATH of its environment. The code is what a shell exits with for a command
// that is no good, 126 or 127, and 0 for the machine's own trouble. It starts nothing.
func CheckStart(dir string, argv []string, path string) (code int64, err error) {
	if dir == "" {
		dir = "/"
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = unix.Access(dir, unix.X_OK)
	}
	if err != nil {
		err = noFolder(dir, cause(err))
		return unusableCode(err), err
	}
	argv = append([]string(nil), argv...)
	if len(argv) > 0 && strings.Contains(argv[0], "/") && !filepath.IsAbs(argv[0]) {
		argv[0] = filepath.Join(dir, argv[0])
	}
	parts := filepath.SplitList(path)
	for i, p := range parts {
		if !filepath.IsAbs(p) {
			parts[i] = filepath.Join(dir, p)
		}
	}
	_, err = lookPath(argv, []string{"PATH=" + strings.Join(parts, string(os.PathListSeparator))})
	return unusableCode(err), err
}
