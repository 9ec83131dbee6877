package testbed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Self returns the path of a link to the test binary, with the name of a program that [MainAs]
// runs. That saves a build.
func Self(tb testing.TB, name string) string {
	tb.Helper()
	binary, err := os.Executable()
	root, failed := home()
	path := filepath.Join(root, "self", name)
	if err = errors.Join(err, failed, os.MkdirAll(filepath.Dir(path), 0o755)); err == nil {
		err = os.Symlink(binary, path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		tb.Fatalf("%s: %v", name, err)
	}
	return path
}

// MainAs calls main in a process that was started by the path of [Self], and [Main] in others.
func MainAs(m *testing.M, name string, main func()) {
	if filepath.Base(os.Args[0]) == name {
		main()
		os.Exit(0)
	}
	Main(m)
}
