package testbed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Binary returns the path of a program that `make deps` puts into bin/, such as "etcd"
// or "valkey-server". The environment variable INTERLOCK_<NAME> overrides it
// (INTERLOCK_KUBE_APISERVER). If bin/ has none, Binary searches the PATH. If it is
// missing, the test is skipped, or fails if INTERLOCK_REQUIRE names it.
func Binary(tb testing.TB, name string) string {
	tb.Helper()
	skipShort(tb, name)
	path, err := findBinary(name)
	if err != nil {
		missing(tb, name, err)
	}
	return path
}

// onPath is Binary for a program that the system provides, which INTERLOCK_REQUIRE names as name.
func onPath(tb testing.TB, program, name string) string {
	tb.Helper()
	skipShort(tb, name)
	path, err := exec.LookPath(program)
	if err != nil {
		missing(tb, name, err)
	}
	return path
}

func findBinary(name string) (string, error) {
	variable := "INTERLOCK_" + strings.ReplaceAll(strings.ToUpper(name), "-", "_")
	if path := os.Getenv(variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", variable, err)
		}
		return path, nil
	}
	if root, err := repository(); err == nil {
		if path := filepath.Join(root, "bin", name); executable(path) {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// repository is the directory with go.work, at or above the working directory.
var repository = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.work above the working directory")
		}
	}
	return "", err
})

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func skipShort(tb testing.TB, name string) {
	tb.Helper()
	if testing.Short() {
		tb.Skipf("%s: not started under -short", name)
	}
}

// missing ends the test. It is skipped, or fails if the environment requires the
// program.
func missing(tb testing.TB, name string, err error) {
	tb.Helper()
	if required(os.Getenv("INTERLOCK_REQUIRE"), name) {
		tb.Fatalf("%s is required by INTERLOCK_REQUIRE and missing (%v): run `make deps`", name, err)
	}
	tb.Skipf("%s is missing (%v): run `make deps`", name, err)
}

func required(list, name string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool {
		return strings.TrimSpace(s) == name
	})
}

// Peer returns the directory with the libraries of a program that is not a Go module.
// `make deps` puts it into the user's cache. The environment variable INTERLOCK_<NAME>
// overrides it. If it is missing, the test is skipped, or fails if INTERLOCK_REQUIRE
// names it.
func Peer(tb testing.TB, name, version string) string {
	tb.Helper()
	skipShort(tb, name)
	dir, err := findPeer(name, version)
	if err != nil {
		missing(tb, name, err)
	}
	return dir
}

func findPeer(name, version string) (string, error) {
	dir := os.Getenv("INTERLOCK_" + strings.ToUpper(name))
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "interlock", name+"-"+version)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) == 0 {
		return "", fmt.Errorf("nothing is in %s: %w", dir, err)
	}
	return dir, nil
}
