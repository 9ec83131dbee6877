package cli_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
)

// patience bounds every wait for a condition in these tests.
const patience = 20 * time.Second

// program builds the command once, with the race detector if the tests have it: for commands
// that run long or concurrently.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs processes and a server: not with -short")
	}
	return testbed.Go(t, "server/cmd/interlock")
}

// plainProgram builds without the race detector, for short commands, which the tests run a
// thousand times.
func plainProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs processes and a server: not with -short")
	}
	return testbed.GoPlain(t, "server/cmd/interlock")
}

// backends are the lock services that every script about locks runs on.
var backends = map[string]func(*testing.T) (url string){
	"etcd":  func(t *testing.T) string { return "etcd://" + testbed.Etcd(t).Addr() },
	"redis": func(t *testing.T) string { return "redis://" + testbed.Redis(t).Addr() },
}

func scripts(t *testing.T, dir string, vars map[string]string) {
	t.Helper()
	path := filepath.Dir(plainProgram(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", dir),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", path)
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			for name, value := range vars {
				e.Setenv(name, value)
			}
			if vars["INTERLOCK_BACKEND"] != "" { // scripts share one server
				e.Setenv("INTERLOCK_PREFIX", filepath.Base(e.WorkDir)+"/")
			}
			return nil
		},
		Condition: func(kind string) (bool, error) { return vars["KIND"] == kind, nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "until-held": untilHeld, "until-awaited": untilAwaited, "until-dev": untilDev, "until-runs": untilRuns,
			"until-offers": untilOffers,
		},
	})
}

func TestLock(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program(t)
			scripts(t, "lock", map[string]string{"INTERLOCK_BACKEND": start(t), "KIND": name})
		})
	}
}

func TestDev(t *testing.T) {
	t.Parallel()
	scripts(t, "dev", nil)
}

// exits N COMMAND… runs a command and requires this exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGUMENT…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// shown is the part of a lock that scripts use.
type shown struct {
	Holder  *struct{ Owner string }
	Waiters []struct{ Owner string }
}

func until(ts *testscript.TestScript, name string, ok func(shown) bool) {
	var last []byte
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) { // each check is a process
		cmd := exec.Command(filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], "interlock"), "locks", "show", name, "-o", "json")
		for _, v := range []string{"INTERLOCK_BACKEND", "INTERLOCK_PREFIX", "XDG_STATE_HOME", "GORACE"} {
			cmd.Env = append(cmd.Env, v+"="+ts.Getenv(v))
		}
		var s shown
		var err error
		if last, err = cmd.Output(); err == nil && json.Unmarshal(last, &s) == nil && ok(s) {
			return
		}
	}
	ts.Fatalf("not within %v; the lock is %s", patience, last)
}

// until-held NAME waits until a lock is held.
func untilHeld(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, args[0], func(s shown) bool { return s.Holder != nil })
}

// until-awaited NAME N waits until a lock has N waiters.
func untilAwaited(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	until(ts, args[0], func(s shown) bool { return len(s.Waiters) == n })
}

// until-dev waits until a development server has written its record, and sets DEV to its
// address.
func untilDev(ts *testscript.TestScript, _ bool, _ []string) {
	file := filepath.Join(ts.Getenv("XDG_STATE_HOME"), "interlock", "dev-server.json")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var r struct{ Endpoint string }
		if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &r) == nil {
			ts.Setenv("DEV", r.Endpoint)
			return
		}
	}
	ts.Fatalf("no development server within %v", patience)
}

// until-runs GLOB VARIABLE waits until a development server runs on a data
// directory, and sets the variable to its address.
func untilRuns(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		dirs, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		for _, dir := range dirs {
			if r, ok := embedded.Find(dir); ok {
				ts.Setenv(args[1], r.Endpoint)
				return
			}
		}
	}
	ts.Fatalf("no development server on %s within %v", args[0], patience)
}

// until-offers NAMES WORD… waits until completion offers these names for the last word: a
// slow machine may exceed the time limit.
func untilOffers(ts *testscript.TestScript, _ bool, args []string) {
	want, last := strings.ReplaceAll(args[0], " ", "\n")+"\n:4\n", ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		ts.Check(ts.Exec("interlock", append([]string{"__complete"}, args[1:]...)...))
		if last = ts.ReadFile("stdout"); last == want {
			return
		}
	}
	ts.Fatalf("%q is offered, not %q within %v", last, want, patience)
}
