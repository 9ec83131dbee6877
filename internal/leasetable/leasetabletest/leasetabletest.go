// Package leasetabletest tests how tables of leases in a SQL database share statements.
package leasetabletest

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// CostOfManyAtOnce requires that calls which wait while statements run share the next one: they
// cost at most half a statement each. count returns the number of statements.
func CostOfManyAtOnce(t *testing.T, d driver.Fenced, many int, count func() int64) {
	t.Helper()
	for way, do := range eachWay(d) {
		before := count()
		for answers, left := atOnce(many, do), many; left > 0; left-- {
			receive(t, answers, way)
		}
		if n := count() - before; n > int64(many)/2 {
			t.Errorf("%s: %d statements for %d callers", way, n, many)
		}
	}
}

// LockedRowHoldsUpNobody requires that calls which share a statement do not wait for the row of
// another name. lock locks the row of a name in a transaction, which unlock ends.
func LockedRowHoldsUpNobody(t *testing.T, d driver.Fenced, lock func(name string) (unlock func())) {
	t.Helper()
	const many = 32
	for range 2 { // the rows exist the second time
		for way, do := range eachWay(d) {
			unlock := lock("n/007")
			answers := atOnce(many, do)
			for range many - 1 {
				receive(t, answers, way+": a call whose row is not locked")
			}
			unlock()
			receive(t, answers, way+": the call whose row was locked")
		}
	}
}

// LockedRowEndsNoOtherLease requires that leases are renewed while the row of another one is
// locked. lock locks the row of a name in a transaction, which unlock ends. d has a short TTL.
func LockedRowEndsNoOtherLease(t *testing.T, d driver.Fenced, lock func(name string) (unlock func())) {
	t.Helper()
	const many, locked = 16, 7
	leases := make([]driver.Lease, many)
	for i := range leases {
		name := fmt.Sprintf("n/%03d", i)
		g, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: "o" + name})
		testbed.OK(t, err)
		leases[i] = g.Lease
	}
	defer lock(fmt.Sprintf("n/%03d", locked))()
	testbed.Eventually(t, "the lease whose row is locked ends", 30*time.Second, func() bool { return leases[locked].Remaining() <= 0 })
	for i, l := range leases {
		if i != locked && l.Remaining() <= 0 {
			t.Errorf("lease %d ended, because the row of lease %d is locked", i, locked)
		}
	}
}

// atOnce calls do with many names concurrently, and returns the answers.
func atOnce(many int, do func(name string) error) <-chan error {
	answers := make(chan error, many)
	for i := range many {
		go func() { answers <- do(fmt.Sprintf("n/%03d", i)) }()
	}
	return answers
}

// receive requires an answer without an error, sooner than a statement may wait for a locked
// row.
func receive(t *testing.T, answers <-chan error, what string) {
	t.Helper()
	select {
	case err := <-answers:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(8 * time.Second):
		t.Fatalf("%s: no answer", what)
	}
}

// eachWay yields how to acquire a name, and then how to release it.
func eachWay(d driver.Fenced) iter.Seq2[string, func(name string) error] {
	return func(yield func(string, func(string) error) bool) {
		_ = yield("acquire", func(name string) error {
			_, err := d.Acquire(context.Background(), driver.Request{Name: name, Owner: "o" + name})
			return err
		}) && yield("release", func(name string) error { return d.Release(context.Background(), name, "o"+name) })
	}
}
