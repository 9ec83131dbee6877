package main

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/etcd"
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

// TestInterrupted: a signal ends the wait for the lock, and no place is left in its queue.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	endpoint := testbed.Etcd(t).Addr()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	testbed.OK(t, err)
	defer client.Close()
	d, err := etcd.Open(t.Context(), client, nil)
	testbed.OK(t, err)
	defer d.Close(context.Background())
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(t, err)
	contenders := func() int64 {
		found, err := client.Get(t.Context(), "runs/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		testbed.OK(t, err)
		return found.Count
	}
	testbed.OK(t, locks.Do(t.Context(), "runs", func(context.Context, interlock.Claim) error {
		p := testbed.Command(t, testbed.Self(t, "quickstart"), endpoint)
		testbed.Eventually(t, "it waits", time.Minute, func() bool { return contenders() == 2 })
		p.Signal(syscall.SIGTERM)
		if end, left := p.Wait(time.Minute), contenders(); end.ExitCode() != 1 || left != 1 {
			t.Errorf("%v, and %d contenders are left: %s", end, left, p.Stderr())
		}
		return nil
	}))
	testbed.OK(t, locks.Close(t.Context()))
}
