package cli

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// shell runs what --shell is given.
const shell = "/bin/sh"

// lookUp finds a command as a shell would, before any lock is taken for it.
func lookUp(name string) (path string, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot): // a PATH with "." in it means it
		return path, nil
	case strings.ContainsRune(name, filepath.Separator) && errors.Is(err, fs.ErrNotExist):
		return "", fail(exitNotFound, "command not found: %s", name)
	case strings.ContainsRune(name, filepath.Separator):
		return "", notExecutable(name)
	}
	if found := onPath(name); found != "" {
		return "", notExecutable(found)
	}
	return "", fail(exitNotFound, "command not found: %s", name)
}

func notExecutable(path string) error {
	return fail(exitNotRunnable, "command not executable: %s", path)
}

// onPath finds a file that has the name but may not be executed.
func onPath(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	return ""
}
