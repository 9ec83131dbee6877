package kube

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	coordination "k8s.io/api/coordination/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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

// repairing returns options that repair, and store the reported counters.
func repairing(before, after *int64) Options {
	return Options{Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me",
		Lowered: func(b, a int64) { *before, *after = b, a }}}}
}

// testImplausibleBaseIsRepaired: drivers that open refuse it, until it is repaired
// with a record; open drivers then continue.
func testImplausibleBaseIsRepaired(s *scene) {
	d := s.open(Options{})
	top := s.acquire(d, "n", "a").Token
	s.release(d, "n", "a")
	s.farBase(d, "n")
	mustRefuse[*driver.ImplausibleError](s, Options{})
	_, err := s.try(d, "n", "b")
	s.mustBe(err, interlock.Definite, "interlock tokens repair")

	var before, after int64
	repaired := s.open(repairing(&before, &after))
	if before < interlock.CounterAt(time.Now().Add(years/2)) || after > interlock.CounterAt(time.Now().Add(time.Minute)) {
		s.Errorf("reported %d before and %d after", before, after)
	}
	s.sees(d, "n", "the repair is seen", func(now sight) bool { base, _ := now.base(); return d.plausible(base, now.rev) == nil })
	for _, d := range []*Driver{repaired, d, s.open(Options{})} {
		g := s.acquire(d, "n", "c")
		if g.Token <= top || driver.Plausible(g.Token.Counter(), time.Now()) != nil {
			s.Errorf("token %d after %d", g.Token, top)
		}
		top = g.Token
		s.release(d, "n", "c")
	}
	records, err := d.Breaks(s.Context(), driver.BaseName, 10)
	if err != nil || len(records) != 1 || records[0].Reason != "a wrong clock" || records[0].By != "me" {
		s.Errorf("the record is %+v, %v", records, err)
	}
	before = 0
	if s.open(repairing(&before, &after)); before != 0 {
		s.Error("it repaired a plausible base")
	}
}

// testRepairKeepsTheToken of a holder, whose next renewal keeps the repaired base.
func testRepairKeepsTheToken(s *scene) {
	d := s.open(Options{TTL: suiteTTL})
	g := s.acquire(d, "n", "holder")
	s.farBase(d, "n")
	var before, after int64
	s.open(repairing(&before, &after))
	s.sees(d, "n", "a renewal after the repair", func(now sight) bool {
		base, _ := now.base()
		return d.plausible(base, now.rev) == nil && now.lease.Annotations[tokenKey] == g.Token.String()
	})
	if g.Lease.Remaining() <= 0 {
		s.Error("the term has ended")
	}
}

// testTokensAfterAMove are above those of the former system, for every name and in
// every process that opens later.
func testTokensAfterAMove(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "old", "a")
	s.release(d, "old", "a")
	last, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	testbed.OK(s, err)
	moved := s.open(Options{Seed: driver.Seed{After: last}})
	for name, d := range map[string]*Driver{"old": moved, "new": s.open(Options{})} {
		if g := s.acquire(d, name, "b"); g.Token <= last {
			s.Errorf("token %d of %q after %d", g.Token, name, last)
		}
	}
	beyond, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(years)), 0)
	testbed.OK(s, err)
	mustRefuse[*driver.ImplausibleError](s, Options{Seed: driver.Seed{After: beyond}})
}

// testClockOfOneClient: a clock years ahead raises nothing.
func testClockOfOneClient(s *scene) {
	ahead := func() time.Time { return time.Now().Add(years) }
	mustRefuse[*driver.ClockError](s, Options{Now: ahead})
	var wrong atomic.Bool
	now := func() time.Time {
		if wrong.Load() {
			return ahead()
		}
		return time.Now()
	}
	d := s.open(Options{Now: now})
	wrong.Store(true)
	_, err := s.try(d, "n", "a")
	s.mustBe(err, interlock.Definite, "the clock of this machine")
	g := s.acquire(s.open(Options{}), "n", "b")
	if driver.Plausible(g.Token.Counter(), time.Now()) != nil {
		s.Errorf("token of %d", g.Token.Counter())
	}
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
