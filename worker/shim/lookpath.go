package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lookPath finds the program as the rank itself would: by the PATH of its own
// environment, relative to its own working directory.
func lookPath(argv, env []string) (string, error) { return lookPathIn("", argv, env) }

// lookPathIn does the same for a working directory that is not this process's; "" is.
func lookPathIn(dir string, argv, env []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", unusablef(exitNotFound, "the command is empty")
	}
	name := argv[0]
	if strings.Contains(name, "/") {
		return name, checkProgram(within(dir, name))
	}
	path := pathOf(env)
	var denied error
	for _, place := range filepath.SplitList(path) {
		file := filepath.Join(place, name)
		if place == "" || place == "." {
			file = "./" + name
		}
		err := checkProgram(within(dir, file))
		if err == nil {
			return file, nil
		}
		if _, stat := os.Stat(within(dir, file)); stat == nil && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", unusablef(exitNotFound, "%q was not found in PATH (%s)", name, path)
}

// pathOf is the PATH of an environment.
func pathOf(env []string) string {
	var path string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	return path
}

func checkProgram(file string) error {
	st, err := os.Stat(file)
	switch err := cause(err); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return unusablef(exitNotFound, "%q: %v", file, err)
	case errors.Is(err, unix.EACCES):
		return unusablef(exitCannotExec, "%q: %v", file, err)
	case err != nil:
		return fmt.Errorf("%q: %w", file, err)
	}
	if st.IsDir() {
		return unusablef(exitCannotExec, "%q is a directory, not a program", file)
	}
	if err := unix.Access(file, unix.X_OK); err != nil {
		return unusablef(exitCannotExec, "%q is not executable (%v): chmod +x it, or run it with its interpreter", file, err)
	}
	return nil
}

// noFolder is a working directory that a rank cannot enter.
func noFolder(dir string, err error) error {
	const advice = "create it on this node or choose another"
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return unusablef(exitNotFound, "working directory %q: %v: %s", dir, err, advice)
	case errors.Is(err, unix.EACCES):
		return unusablef(exitCannotExec, "working directory %q: %v: %s", dir, err, advice)
	}
	return fmt.Errorf("working directory %q: %w", dir, err)
}

func execFailure(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return unusablef(exitCannotExec, "%q cannot be executed: it is neither a program of this machine nor a script whose first line names its interpreter", path)
	case errors.Is(err, unix.ENOENT):
		return unusablef(exitNotFound, "%q exists but the interpreter or loader that it names does not", path)
	case errors.Is(err, unix.E2BIG):
		return unusablef(exitCannotExec, "%q: arguments and environment are larger than the system allows", path)
	}
	return fmt.Errorf("%q cannot be executed: %w", path, err)
}

// cause strips the operation and path that os errors repeat.
func cause(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}
