package testbed

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var builds struct {
	sync.Mutex
	of map[wanted]*build
}

type wanted struct {
	pkg  string
	race bool
}

type build struct {
	once sync.Once
	path string
	err  error
}

// Go builds the command in directory pkg of this repository, such as
// "server/cmd/interlock", and returns the path of the program. It builds once per
// test process, with the race detector if the test has it.
func Go(tb testing.TB, pkg string) string {
	tb.Helper()
	return built(tb, wanted{pkg, Race})
}

// GoPlain builds like [Go] without the race detector, for a program that runs a
// short command many times: the detector triples the processor time of a start.
func GoPlain(tb testing.TB, pkg string) string {
	tb.Helper()
	return built(tb, wanted{pkg, false})
}

func built(tb testing.TB, w wanted) string {
	tb.Helper()
	b := buildOf(w)
	b.once.Do(func() { b.path, b.err = goBuild(w) })
	if b.err != nil {
		tb.Fatalf("build %s: %v", w.pkg, b.err)
	}
	return b.path
}

func buildOf(w wanted) *build {
	builds.Lock()
	defer builds.Unlock()
	if builds.of == nil {
		builds.of = map[wanted]*build{}
	}
	if builds.of[w] == nil {
		builds.of[w] = new(build)
	}
	return builds.of[w]
}

func goBuild(w wanted) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	dir, err := place("build")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(w.pkg))
	// Omit the debugger's tables, which take a third of the link time.
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", path}
	if w.race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = filepath.Join(root, w.pkg)
	return path, run(cmd, dir, nil)
}
