// Package testbed runs real servers for tests: Redis, etcd, PostgreSQL, PgBouncer, MariaDB,
// ZooKeeper, Kafka, NATS, Consul, kube-apiserver and an emulator of SQS. They are child processes
// on loopback, in their own directories. A TCP proxy breaks the path to them. It does not isolate
// a test from the machine: a slow disk or a busy processor has an effect. Except for SQS, it never
// simulates a server.
//
//	func TestAgainstRedis(t *testing.T) {
//		server := testbed.Redis(t, "--appendonly", "yes")
//		proxy := testbed.NewProxy(t, server.Addr())
//		client := dial(t, proxy.Addr())
//		proxy.DropReplies() // from now on every outcome is unknown
//		…
//		server.Kill()
//		server.Restart() // same address, same data
//	}
//
// If the program of a server is missing, the test is skipped, with one line on how to get it. It
// fails instead if the environment variable INTERLOCK_REQUIRE names the program in its comma list.
// The names are redis, etcd, etcdctl, postgres, pgbouncer, mariadb, zookeeper, kafka, nats-server,
// consul, kube-apiserver, and the peers elasticmq, redis-py, kazoo and curator. Under -short every
// test that needs a server or a tool is skipped.
//
// The testbed leaves nothing, even if the test process is killed. Three mechanisms ensure that.
// The first is tb.Cleanup. On Linux the kernel kills a child when the thread that started it ends.
// And a small shell process waits for the end of the test process, kills all processes with its
// mark and removes its directory. The mark is the environment variable INTERLOCK_TESTBED, which
// children inherit, or a working directory inside ours. Finding marked processes needs /proc;
// without it only orderly clean-up and process groups remain.
//
// Methods end the test by tb.Fatal if they fail, so call them on the test's own
// goroutine.
package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
