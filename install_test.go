package interlock_test

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// consumer is what a user of the Redis lock writes.
const consumer = `package main

import (
	"context"

	"github.com/interlock-dev/interlock/claim/lock"
	_ "github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/guard/fence"
)

func main() {
	if _, err := lock.Open(context.Background(), "redis://127.0.0.1:6379", nil); err != nil {
		panic(err)
	}
}
`

// heavy are dependencies that a user of the Redis lock must not get.
var heavy = []string{"google.golang.org/grpc", "k8s.io/", "go.etcd.io/", "go.opentelemetry.io/"}

// TestInstall releases the working tree in a clone, and uses the release as others do:
// outside of the workspace, by its tags, without the network as far as Go's module cache has
// what we require. The version is always the same, so packages that have not changed since
// an earlier run are not compiled again.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the command")
	}
	if _, err := exec.Command("git", "rev-parse", "HEAD").Output(); err != nil {
		t.Skip("not a git checkout")
	}
	const released = "v0.0.0-ci"
	release(t, released)
	t.Run("command", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("GOBIN", dir)
		command(t, dir, "go", "install", "-ldflags=-s -w", modulePath+"/server/cmd/interlock@"+released)
		if out := command(t, dir, filepath.Join(dir, "interlock"), "version"); !strings.Contains(out, released) {
			t.Errorf("it says %q", out)
		}
	})
	t.Run("Redis lock", func(t *testing.T) {
		dir := newModule(t, consumer, released, "")
		for _, list := range [][]string{{"list", "-deps", "."}, {"list", "-m", "all"}} {
			out := command(t, dir, "go", list...)
			if !strings.Contains(out, "rueidis") {
				t.Errorf("go %v does not name the Redis client:\n%s", list, out)
			}
			for _, name := range heavy {
				if strings.Contains(out, name) {
					t.Errorf("go %v names %s", list, name)
				}
			}
		}
	})
	t.Run("README", func(t *testing.T) {
		text, err := os.ReadFile("README.md")
		program := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindSubmatch(text)
		if err != nil || program == nil {
			t.Fatalf("README.md has no program: %v", err)
		}
		newModule(t, string(program[1]), released, "")
	})
	t.Run("modules", func(t *testing.T) {
		for dir := range strings.FieldsSeq(command(t, ".", "scripts/modules.sh", "published")) {
			if pkg := filepath.Join(modulePath, dir); strings.Contains(dir, "/driver") || strings.Contains(dir, "/guard") {
				newModule(t, "package main\n\nimport _ \""+pkg+"\"\n\nfunc main() {}\n", released, pkg)
			}
		}
	})
}

// The files of deploy run interlock coordinate with flags that it has.
func TestDeploy(t *testing.T) {
	flags := read(t, "server/internal/cli/coordinate.go")
	found := 0
	for _, file := range []string{"compose.yaml", "interlock-coordinate.service", "helm/templates/deployment.yaml"} {
		text := read(t, filepath.Join("deploy", file))
		if !strings.Contains(text, "coordinate\n") {
			t.Errorf("%s does not run interlock coordinate", file)
		}
		_, text, _ = strings.Cut(text, "coordinate\n")
		for _, flag := range regexp.MustCompile(`- (?:\{\{ printf ")?--([a-z-]+)=`).FindAllStringSubmatch(text, -1) {
			if found++; !strings.Contains(flags, `"`+flag[1]+`"`) {
				t.Errorf("%s: there is no flag --%s", file, flag[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d flags found", found)
	}
}

// modules is a module cache that lasts, so that what others published is unpacked once. It
// is empty of what we published, and this process has it to itself.
func modules(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(t.TempDir(), "modules")
	}
	dir := filepath.Join(cache, "interlock", "modules")
	testbed.OK(t, os.MkdirAll(dir, 0o755))
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err == nil {
		t.Cleanup(func() { lock.Close() })
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	ours := filepath.Dir(modulePath)
	for _, old := range []string{ours, filepath.Join("cache/download", ours), "cache/vcs"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, old)))
	}
	testbed.OK(t, err)
	return dir
}

// release makes go see the working tree at the version released, and nothing of the workspace.
func release(t *testing.T, released string) {
	t.Helper()
	modules := modules(t)
	dir := t.TempDir()
	clone := filepath.Join(dir, "clone")
	command(t, ".", "scripts/release.sh", "-working-tree", released, clone)
	// Ours are compiled once for all, without optimization.
	flags := "-mod=mod -modcacherw -trimpath '-gcflags=" + modulePath + "/...=-N -l'"
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		flags += " -race" // as everything beside it is compiled
	}
	for name, value := range map[string]string{
		"GOWORK": "off", "GOFLAGS": flags, "GOSUMDB": "off", "GOPRIVATE": modulePath,
		"GOMODCACHE": modules, "GODEBUG": "goindex=0", // an index of files is kept for a version
		"GOPROXY": "file://" + strings.Join(strings.Fields(command(t, ".", "go", "env", "GOMODCACHE", "GOPROXY")), "/cache/download,"),

		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "url.file://" + clone + ".insteadOf", "GIT_CONFIG_VALUE_0": "https://" + modulePath,
	} {
		t.Setenv(name, value)
	}
}

// newModule builds a program in a module of its own, and returns its directory. The module
// requires the nested one as released, or the root module if nested is "".
func newModule(t *testing.T, program, released, nested string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	testbed.OK(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	command(t, dir, "go", "mod", "init", "example.org/consumer")
	if nested != "" {
		command(t, dir, "go", "get", nested+"@"+released)
		command(t, dir, "go", "list", "-deps", ".")
		return dir
	}
	command(t, dir, "go", "get", modulePath+"@"+released)
	command(t, dir, "go", "mod", "tidy")
	command(t, dir, "go", "list", "-export", "-f", "{{.Name}}", ".") // it compiles all, and links nothing
	return dir
}

// command runs a program at a low priority, or at $NICE, and returns its standard output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nice", append([]string{"-n", cmp.Or(os.Getenv("NICE"), "19"), name}, args...)...)
	cmd.Dir = dir
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &complaints)
	}
	return string(out)
}
