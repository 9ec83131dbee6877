package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.MainAs(m, "quickstart", main) }

// TestQuickstart runs the program several times concurrently, and checks that no count is
// lost and that tokens rise with the counts.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	const runs = 5
	endpoint := testbed.Etcd(t).Addr()
	program := testbed.Self(t, "quickstart")
	var started [runs]*testbed.Process
	for i := range started {
		started[i] = testbed.Command(t, program, endpoint)
	}
	tokens := make(map[int]int64)
	for _, p := range started {
		var n int
		var token int64
		if _, err := fmt.Sscanf(p.Line(time.Minute), "run %d, token %d", &n, &token); err != nil {
			t.Fatalf("%v: %s", err, p.Stderr())
		}
		if end := p.Wait(time.Minute); !end.Success() {
			t.Fatalf("%v: %s", end, p.Stderr())
		}
		tokens[n] = token
	}
	for n := 1; n <= runs; n++ {
		if tokens[n] <= tokens[n-1] {
			t.Errorf("run %d has token %d, the one before it %d; all: %v", n, tokens[n], tokens[n-1], tokens)
		}
	}
}
