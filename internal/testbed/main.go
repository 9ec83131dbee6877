package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main is the TestMain of a package without goroutine leaks. It runs the tests, stops the [Shared]
// servers, and fails if a goroutine remains after ten seconds. Some clients end theirs about a
// second after Close.
func Main(m *testing.M) {
	code := m.Run()
	endShared()
	if code == 0 {
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if err = goleak.Find(); err == nil { // goleak retries for half a second itself
				break
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "the tests left goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

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
