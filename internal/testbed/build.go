package testbed

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var builds struct {
	sync.Mutex
	of map[string]*build
}

type build struct {
	once sync.Once
	path string
	err  error
}

// Go builds the command in directory pkg of this repository, such as
// "server/cmd/interlock", and returns the path of the program. It is built once
// per test process, with the race detector if the test has it.
func Go(tb testing.TB, pkg string) string {
	tb.Helper()
	b := buildOf(pkg)
	b.once.Do(func() { b.path, b.err = goBuild(pkg) })
	if b.err != nil {
		tb.Fatalf("build %s: %v", pkg, b.err)
	}
	return b.path
}

func buildOf(pkg string) *build {
	builds.Lock()
	defer builds.Unlock()
	if builds.of == nil {
		builds.of = map[string]*build{}
	}
	if builds.of[pkg] == nil {
		builds.of[pkg] = new(build)
	}
	return builds.of[pkg]
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
	args := []string{"build", "-buildvcs=false", "-o", path}
	if Race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = filepath.Join(root, pkg)
	return path, run(cmd, dir, nil)
}
