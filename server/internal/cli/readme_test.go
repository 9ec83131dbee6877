package cli_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// The README's three minutes: a job whose wrapper is stopped past its lease goes
// on, and what it writes afterwards is refused.
func TestThreeMinutes(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		interlock := program(t)
		job := func(script string) *testbed.Process {
			return testbed.Command(t, interlock, "lock", "report", "--ttl", "2s", "--backend", url, "--", "sh", "-c", script, interlock)
		}
		first := job(`echo holding; read _; "$0" guard enter report --set written-by=first; echo "exit code $?"`)
		if line := first.Line(patience); line != "holding" {
			t.Fatalf("it said %q", line)
		}
		first.Pause()
		second := job(`"$0" guard enter report --set written-by=second`)
		wantCode(t, second, 0)
		if line := second.Line(patience); !strings.HasSuffix(line, " entered, 1 key written") {
			t.Fatalf("it said %q", line)
		}

		if _, err := first.Stdin().Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		if line := first.Line(patience); line != "exit code 80" {
			t.Errorf("it said %q", line)
		}
		first.Resume()
		wantCode(t, first, 79)
		if said := first.Stderr(); !strings.Contains(said, `interlock: refused: stale token for "report": got `) {
			t.Errorf("it said %q", said)
		}
	})
}
