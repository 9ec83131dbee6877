package kube

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
