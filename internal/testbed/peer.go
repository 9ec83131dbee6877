package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
