// Package crash kills or stops a child process of the test between any two of its steps. It does
// not choose what to check afterwards. The test reads the remaining state from the real server,
// and runs the same role again to see it recover.
//
// A role is the code of a child process. It passes points, and SIGKILL ends it at
// the chosen one:
//
//	var roles = map[string]crash.Role{"relay": relay}
//
//	func TestMain(m *testing.M) { crash.Main(m, roles) }
//
//	func relay(ctx context.Context, at *crash.Points, args []string) error {
//		db, closed, err := databases.Connect(ctx, args[0], args[1])
//		…
//		return work(ctx, crash.Beginner(db, at))
//	}
//
//	func TestCrashes(t *testing.T) {
//		crash.Once(t, "relay", func(tb testing.TB) crash.Scene {
//			db := …
//			return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) { … }}
//		})
//	}
//
// [Pairs] kills the second run too, [Asleep] stops a run while another one takes over, and
// [Lead] runs a process from point to point.
package crash

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// Role is the code of a child process. It must pass its points in the same
// order in every run.
type Role func(ctx context.Context, at *Points, args []string) error

// Points are the places at which a process can be killed, or stopped by a [Walk]. They
// are numbered from 1 in the order in which they are passed.
type Points struct {
	chosen int64 // 0 means none
	passed atomic.Int64
	led    *led // nil without a walk
}

// Pass passes the next point. At the chosen point it does not return. Nil Points have
// no effect.
func (p *Points) Pass() {
	if p == nil {
		return
	}
	n := p.passed.Add(1)
	p.led.stop()
	if n != p.chosen {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal arrives
}

// Environment of a child.
const (
	roleVariable  = "INTERLOCK_CRASH_ROLE"
	pointVariable = "INTERLOCK_CRASH_POINT"
)

// donePrefix begins the line in which a child that was not killed reports how many
// points it has passed.
const donePrefix = "crash: points passed: "

// Main is the TestMain of a package whose processes crash. In a child it runs the role;
// otherwise it runs the tests and checks for goroutine leaks.
func Main(m *testing.M, roles map[string]Role) {
	name := os.Getenv(roleVariable)
	if name == "" {
		testbed.Main(m)
		return
	}
	role, ok := roles[name]
	if !ok {
		exit("there is no role %q", name)
	}
	at := &Points{}
	if point := os.Getenv(pointVariable); point == each {
		at.led = newLed(os.Stdin)
	} else if chosen, err := strconv.ParseInt(point, 10, 64); err != nil {
		exit("%v", err)
	} else {
		at.chosen = chosen
	}
	if err := role(context.Background(), at, os.Args[1:]); err != nil {
		exit("role %s: %v", name, err)
	}
	fmt.Println(donePrefix + strconv.FormatInt(at.passed.Load(), 10))
	os.Exit(0)
}

func exit(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "crash: "+format+"\n", args...)
	os.Exit(1)
}

// bound is the time limit of a child.
const bound = time.Minute

// Run runs a role in a child that is killed at a point, counted from 1; 0 lets it
// finish. It returns how many points were passed, or that the child was killed.
// If a child fails by itself, Run fails the test.
func Run(tb testing.TB, role string, point int, args ...string) (passed int, killed bool) {
	tb.Helper()
	p := Start(tb, role, point, args...)
	state := p.Wait(bound)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return point, true
	}
	if !state.Success() {
		tb.Fatalf("role %s, to be killed at %d: %v\n%s", role, point, state, p.Stderr())
	}
	for line := range p.Stdout() {
		if text, ok := strings.CutPrefix(line, donePrefix); ok {
			passed, _ = strconv.Atoi(text)
		}
	}
	return passed, false
}

// Start does not wait for the end, unlike Run: the test may pause the process, read its
// output, or kill it.
func Start(tb testing.TB, role string, point int, args ...string) *testbed.Process {
	tb.Helper()
	return start(tb, role, strconv.Itoa(point), args)
}

func start(tb testing.TB, role, point string, args []string) *testbed.Process {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return testbed.Start(tb, testbed.Program{Path: self, Args: args, Env: []string{
		roleVariable + "=" + role, pointVariable + "=" + point,
		"GORACE=atexit_sleep_ms=0", // the race detector sleeps a second at each exit
	}})
}
