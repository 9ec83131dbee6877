package guarantees

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const stepped = "INTERLOCK_GUARANTEES_STEPPED"

// TestMemoryOverAClockStep steps the clock of a process in both directions. Locks stay
// held, and tokens rise by one.
func TestMemoryOverAClockStep(t *testing.T) {
	t.Parallel()
	if os.Getenv(stepped) != "" {
		grantOnRequest(t)
		return
	}
	p := testbed.Start(t, testbed.Program{Path: os.Args[0], Args: []string{"-test.run=^" + t.Name() + "$"}, Env: []string{stepped + "=1"}})
	grant := func() (token, clock int64) {
		fmt.Fprintln(p.Stdin())
		if _, err := fmt.Sscan(p.Line(patience), &token, &clock); err != nil {
			t.Fatal(err)
		}
		return token, clock
	}
	last, _ := grant()
	for _, by := range []time.Duration{20 * long, -20 * long, 0} {
		p.StepClock(by)
		token, clock := grant()
		if off := time.Until(time.Unix(clock, 0)) - by; off.Abs() > time.Minute {
			t.Fatalf("the clock was stepped by %v, and it is %v off that", by, off)
		}
		if token <= last || token-last > 1<<20 {
			t.Errorf("the clock was stepped by %v: token %d after %d", by, token, last)
		}
		last = token
	}
}

// grantOnRequest runs the child: for each line it acquires a lock and prints its token and
// the time.
func grantOnRequest(t *testing.T) {
	d := openMemory()
	acquire(t, d, "held", "holder")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if _, err := ask(t, d, "held"); !errors.Is(err, interlock.ErrHeld) {
			t.Fatalf("a held lock is granted to another owner: %v", err)
		}
		g, err := ask(t, d, "n")
		testbed.OK(t, err)
		release(t, d, "n", fmt.Sprint("one/", owners.Load()))
		fmt.Println(int64(g.Token), time.Now().Unix())
	}
}
