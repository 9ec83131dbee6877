package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// left returns the names of the namespace's Leases.
func (s *scene) left() (names []string) {
	s.Helper()
	all, err := s.operator.CoordinationV1().Leases(s.namespace).List(s.Context(), metav1.ListOptions{})
	testbed.OK(s, err)
	for _, l := range all.Items {
		names = append(names, l.Name)
	}
	return names
}

// sweptTo waits until d has seen all releases, sweeps, and returns what is left.
func (s *scene) sweptTo(d *Driver, most, want int) []string {
	s.Helper()
	testbed.Eventually(s, "released Leases are swept", patience, func() bool {
		_, err := d.sweep(s.Context(), 0, most)
		testbed.OK(s, err)
		return len(s.left()) <= want
	})
	return s.left()
}

// testReadsLeaveNothing but the Lease of the base, in the cluster and in the
// process.
func testReadsLeaveNothing(s *scene) {
	d := s.open(Options{})
	locks, err := rwlock.New(d, nil)
	testbed.OK(s, err)
	defer locks.Close(context.Background())
	const reads = 30
	for range reads {
		testbed.OK(s, locks.Read(s.Context(), "prices", func(context.Context, *rwlock.ReadClaim) error { return nil }))
	}
	if n := len(s.left()); n < reads {
		s.Fatalf("%d Leases after %d reads", n, reads)
	}
	if left := s.sweptTo(d, sweepSize, 1); !slices.Equal(left, []string{driver.BaseName}) {
		s.Fatalf("left: %v", left)
	}
	testbed.Eventually(s, "the process forgets them too", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.view.sights) <= 2 // the base, and the door while it is in use
	})
}

// testSweepIsBounded: it removes no more than requested, and only Leases that have
// been idle for long.
func testSweepIsBounded(s *scene) {
	d := s.open(Options{})
	for i := range 10 {
		name := fmt.Sprint("n", i)
		s.acquire(d, name, "o")
		s.release(d, name, "o")
	}
	if n, err := d.sweep(s.Context(), time.Hour, 10); n != 0 || err != nil {
		s.Fatalf("%d removed that were just released, %v", n, err)
	}
	before := s.leases.n.Load()
	if n, err := d.sweep(s.Context(), 0, 4); n != 4 || err != nil {
		s.Fatalf("%d removed, %v", n, err)
	}
	if got := s.leases.n.Load() - before; got != 6 {
		s.Fatalf("%d requests to remove four and to keep the base", got)
	}
	if left := s.left(); len(left) != 7 {
		s.Fatalf("left: %v", left)
	}
}

// testSweepSpares held Leases, Leases taken since they were seen, records, and data
// of others.
func testSweepSpares(s *scene) {
	deaf := &ear{}
	config := s.config()
	config.Wrap(deaf.wrap)
	d, other := s.openWith(config, Options{}), s.open(Options{})
	for _, name := range []string{"held", "taken", "broken", "labelled", "free"} {
		s.acquire(d, name, "o")
	}
	if _, ok, err := d.Break(s.Context(), driver.Break{Name: "broken", Owner: "o", Reason: "r", By: "b"}); !ok || err != nil {
		s.Fatal(ok, err)
	}
	for _, name := range []string{"taken", "labelled", "free"} {
		s.release(d, name, "o")
	}
	s.edit("labelled", func(l *coordination.Lease) { l.Labels = map[string]string{"team": "a"} })
	foreign := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}
	_, err := s.operator.CoordinationV1().Leases(s.namespace).Create(s.Context(), foreign, metav1.CreateOptions{})
	testbed.OK(s, err)
	s.sees(d, "foreign", "the last change is seen", func(now sight) bool { return now.exists() })
	deaf.deaf.Store(true)
	s.acquire(other, "taken", "another")
	_, err = d.sweep(s.Context(), 0, sweepSize)
	testbed.OK(s, err)
	left := s.left()
	slices.Sort(left)
	if want := []string{"broken", "foreign", "held", driver.BaseName, "labelled", "taken"}; !slices.Equal(left, want) {
		s.Fatalf("left: %v, want %v", left, want)
	}
}

// testTokensOverASweep rise also if they were ahead of the clock, and for a process
// that opens later.
func testTokensOverASweep(s *scene) {
	d := s.open(Options{})
	ahead := s.open(Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
	former := s.acquire(ahead, "n", "o").Token
	s.release(ahead, "n", "o")
	s.sees(d, "n", "it is released", func(now sight) bool { return now.exists() && now.holder() == "" })
	if left := s.sweptTo(d, sweepSize, 1); !slices.Equal(left, []string{driver.BaseName}) {
		s.Fatalf("left: %v", left)
	}
	for _, d := range []*Driver{s.open(Options{}), d, ahead} {
		next := s.acquire(d, "n", "o").Token
		if next <= former {
			s.Errorf("token %d after %d", next, former)
		}
		former = next
		s.release(d, "n", "o")
	}
}
