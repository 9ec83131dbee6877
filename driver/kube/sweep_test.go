package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
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

const years = 5 * 365 * 24 * time.Hour

// mustRefuse requires that no driver opens, with an error of type E.
func mustRefuse[E error](s *scene, o Options) {
	s.Helper()
	o.Namespace = s.namespace
	d, err := Open(s.Context(), s.config(), &o)
	var want E
	if err == nil {
		_ = d.Close(s.Context())
	}
	if !errors.As(err, &want) || interlock.Kind(err) != interlock.Definite {
		s.Fatalf("opened: %v", err)
	}
}

// farBase sets the base of a Lease years ahead, and waits until d sees it.
func (s *scene) farBase(d *Driver, name string) {
	s.Helper()
	far := strconv.FormatInt(interlock.CounterAt(time.Now().Add(years)), 10)
	s.edit(name, func(l *coordination.Lease) { l.Annotations[baseKey] = far })
	s.sees(d, name, "the edit is seen", func(now sight) bool { return now.lease.Annotations[baseKey] == far })
}

// testSeed: a wrong clock, an implausible base and its repair, and a move from another system.
func testSeed(s *scene) {
	var opened []*Driver
	seen := func(what string, fits func(base int64) bool) {
		for _, d := range opened {
			s.sees(d, "x", what, func(now sight) bool { base, _ := now.base(); return fits(base) })
		}
	}
	drivertest.RunSeed(s.T, drivertest.SeedHarness{
		Open: func(_ *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			d, err := Open(s.Context(), s.config(), &Options{Namespace: s.namespace, Seed: seed})
			if err != nil {
				return nil, err
			}
			testbed.CloseAfter(s, d)
			if seed.Repair != nil {
				seen("the repair is seen", func(base int64) bool { return d.plausible(base, 0) == nil })
			}
			opened = append(opened, d)
			return d, nil
		},
		OpenAt: func(_ *testing.T, now func() time.Time) error {
			_, err := Open(s.Context(), s.config(), &Options{Namespace: s.namespace, Now: now})
			return err
		},
		Set: func(_ *testing.T, counter int64) {
			s.edit("x", func(l *coordination.Lease) { l.Annotations[baseKey] = strconv.FormatInt(counter, 10) })
			seen("the edit is seen", func(base int64) bool { return base == counter })
		},
	})
}

// testRepairKeepsTheToken of a holder, whose next renewal keeps the repaired base.
func testRepairKeepsTheToken(s *scene) {
	d := s.open(Options{TTL: suiteTTL})
	g := s.acquire(d, "n", "holder")
	s.farBase(d, "n")
	s.open(Options{Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}}})
	s.sees(d, "n", "a renewal after the repair", func(now sight) bool {
		base, _ := now.base()
		return d.plausible(base, now.rev) == nil && now.lease.Annotations[tokenKey] == g.Token.String()
	})
	if g.Lease.Remaining() <= 0 {
		s.Error("the term has ended")
	}
}

// testClockGoesWrong: a process whose clock is years ahead grants nothing.
func testClockGoesWrong(s *scene) {
	var wrong atomic.Bool
	d := s.open(Options{Now: func() time.Time {
		if wrong.Load() {
			return time.Now().Add(years)
		}
		return time.Now()
	}})
	wrong.Store(true)
	_, err := s.try(d, "n", "a")
	s.mustBe(err, interlock.Definite, "the clock of this machine")
}

// testClockOfTheServer: the server's clock decides which bases are plausible, not the process's.
func testClockOfTheServer(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "n", "a")
	s.release(d, "n", "a")
	late := s.open(Options{Now: func() time.Time { return time.Now().Add(-years) }})
	s.acquire(late, "n", "b") // though by its own clock the base is implausible
	s.release(late, "n", "b")
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Header.Set("Date", time.Now().Add(-years).UTC().Format(http.TimeFormat))
		}
		return answer, err
	})
	mustRefuse[*driver.ClockError](s, Options{})
	mustRefuse[*driver.ImplausibleError](s, Options{Now: func() time.Time { return time.Now().Add(-years) }})
}
