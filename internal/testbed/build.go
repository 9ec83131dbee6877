package testbed

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// builds has a function for each command that was asked for, which builds it once.
var builds sync.Map

// Go builds the command in directory pkg of this repository, such as
// "server/cmd/interlock", and returns the path of the program. It builds once per
// test process, with the race detector if the test has it.
func Go(tb testing.TB, pkg string) string {
	tb.Helper()
	build, _ := builds.LoadOrStore(pkg, sync.OnceValues(func() (string, error) { return goBuild(pkg) }))
	path, err := build.(func() (string, error))()
	if err != nil {
		tb.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

func goBuild(pkg string) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	dir, err := place("build")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(pkg))
	// Omit the debugger's tables, which take a third of the link time.
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", path}
	if Race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = filepath.Join(root, pkg)
	return path, run(cmd, dir, nil)
}
