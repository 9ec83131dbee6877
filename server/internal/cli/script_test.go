package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
	"github.com/interlock-dev/interlock/server/internal/cli"
)

// patience bounds every wait for a condition in these tests.
const patience = testbed.Patience

// program returns the command: the test binary by another name.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs processes and a server: not with -short")
	}
	return testbed.Self(t, "interlock")
}

// backends are the lock services that every script about locks runs on. A server is for one test
// alone, and empty.
var backends = map[string]func(*testing.T) (url string){
	"etcd": func(t *testing.T) string {
		return "etcd://" + testbed.Borrowed(t, testbed.Etcd, func(s *testbed.Server) {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := client.Post(s.URL()+"/v3/kv/deleterange", "application/json", strings.NewReader(`{"key":"AA==","range_end":"AA=="}`))
			testbed.OK(t, err)
			answer.Body.Close()
		}).Addr()
	},
	"redis": func(t *testing.T) string {
		return "redis://" + testbed.Borrowed(t, testbed.Redis, func(s *testbed.Server) {
			conn, err := net.Dial("tcp", s.Addr())
			testbed.OK(t, err)
			defer conn.Close()
			ok := make([]byte, len("+OK\r\n"))
			_, err = conn.Write([]byte("FLUSHALL\r\n"))
			testbed.OK(t, err)
			_, err = io.ReadFull(conn, ok)
			testbed.OK(t, err)
		}).Addr()
	},
}

func scripts(t *testing.T, dir string, vars map[string]string) {
	t.Helper()
	path := filepath.Dir(program(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
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
			"interlock": func(ts *testscript.TestScript, fails bool, args []string) {
				if code := inProcess(t, ts, args); (code != 0) != fails {
					ts.Fatalf("exit code %d", code)
				}
			},
			"exits":         func(ts *testscript.TestScript, _ bool, args []string) { exits(t, ts, args) },
			"until-held":    func(ts *testscript.TestScript, _ bool, args []string) { untilHeld(t, ts, args) },
			"until-awaited": func(ts *testscript.TestScript, _ bool, args []string) { untilAwaited(t, ts, args) },
			"until-dev":     untilDev,
			"until-runs":    untilRuns,
			"until-offers":  untilOffers,
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

// inProcess runs a command line in the test process, with the backend of the script.
func inProcess(t *testing.T, ts *testscript.TestScript, args []string) int {
	if !slices.Contains(args, "--backend") {
		args = append([]string{"--backend", ts.Getenv("INTERLOCK_BACKEND")}, args...)
	}
	code, out, said := cli.RunWithin(t, append([]string{"--prefix", ts.Getenv("INTERLOCK_PREFIX")}, args...)...)
	fmt.Fprint(ts.Stdout(), out)
	fmt.Fprint(ts.Stderr(), said)
	return code
}

// exits N COMMAND… runs a command and requires this exit code. It runs interlock in the test process
// unless that starts another command.
func exits(t *testing.T, ts *testscript.TestScript, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if args[1] == "interlock" && ts.Getenv("INTERLOCK_BACKEND") != "" && (want == 64 || !slices.Contains(args, "--")) {
		got = inProcess(t, ts, args[2:])
	} else if err := ts.Exec(args[1], args[2:]...); err != nil {
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

func until(t *testing.T, ts *testscript.TestScript, name string, ok func(shown) bool) {
	var last string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		_, last, _ = cli.RunWithin(t, "locks", "show", name, "-o", "json", "--backend", ts.Getenv("INTERLOCK_BACKEND"), "--prefix", ts.Getenv("INTERLOCK_PREFIX"))
		var s shown
		if json.Unmarshal([]byte(last), &s) == nil && ok(s) {
			return
		}
	}
	ts.Fatalf("not within %v; the lock is %s", patience, last)
}

// until-held NAME waits until a lock is held.
func untilHeld(t *testing.T, ts *testscript.TestScript, args []string) {
	until(t, ts, args[0], func(s shown) bool { return s.Holder != nil })
}

// until-awaited NAME N waits until a lock has N waiters.
func untilAwaited(t *testing.T, ts *testscript.TestScript, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	until(t, ts, args[0], func(s shown) bool { return len(s.Waiters) == n })
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
