package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
)

// releaser is a claim of any shape.
type releaser interface{ Release(context.Context) error }

func (s *scene) giveBack(c releaser, err error) {
	s.Helper()
	if err == nil {
		err = c.Release(s.Context())
	}
	if err != nil {
		s.Fatal(err)
	}
}

// testReadersAndAWriter in two processes: readers hold at once, and a writer only
// alone.
func testReadersAndAWriter(s *scene) {
	var locks []*rwlock.Lock
	for range 2 {
		l, err := rwlock.New(s.open(Options{}), nil)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = l.Close(context.Background()) })
		locks = append(locks, l)
	}
	one, err := locks[0].AcquireRead(s.Context(), "n")
	if err != nil {
		s.Fatal(err)
	}
	two, err := locks[1].AcquireRead(s.Context(), "n")
	if err != nil || !one.Valid() || !two.Valid() {
		s.Fatal("two readers do not hold at once", err)
	}
	if c, err := locks[1].TryWrite(s.Context(), "n"); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("a writer beside readers: %v, %v", c, err)
	}
	s.giveBack(one, nil)
	s.giveBack(two, nil)
	writer, err := locks[0].AcquireWrite(s.Context(), "n")
	if err != nil {
		s.Fatal(err)
	}
	if r, err := locks[1].TryRead(s.Context(), "n"); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("a reader beside a writer: %v, %v", r, err)
	}
	reader, err := writer.Downgrade(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.giveBack(locks[1].AcquireRead(s.Context(), "n"))
	if c, err := locks[1].TryWrite(s.Context(), "n"); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("a writer beside one that reads now: %v, %v", c, err)
	}
	s.giveBack(reader, nil)
	s.giveBack(locks[1].AcquireWrite(s.Context(), "n"))
}

// testPermits: as many are out at once as there are, over two processes, and no
// more.
func testPermits(s *scene) {
	var permits []*semaphore.Semaphore
	for range 2 {
		p, err := semaphore.New(s.open(Options{}), 2, nil)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = p.Close(context.Background()) })
		permits = append(permits, p)
	}
	one, err := permits[0].Acquire(s.Context(), "n")
	if err != nil {
		s.Fatal(err)
	}
	two, err := permits[1].Acquire(s.Context(), "n")
	if err != nil || !one.Valid() || !two.Valid() {
		s.Fatal("two permits are not out at once", err)
	}
	for _, p := range permits {
		if c, err := p.TryAcquire(s.Context(), "n"); !errors.Is(err, interlock.ErrHeld) {
			s.Fatalf("a third permit of two: %v, %v", c, err)
		}
	}
	s.giveBack(one, nil)
	s.giveBack(permits[1].Acquire(s.Context(), "n"))
	if c, err := permits[0].TryAcquireN(s.Context(), "n", 2); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("both permits while one is out: %v, %v", c, err)
	}
	s.giveBack(two, nil)
	s.giveBack(permits[0].AcquireN(s.Context(), "n", 2))
}

// testSeveralNames that two processes ask for in opposite orders: neither waits for
// the other for ever, and no name has two holders.
func testSeveralNames(s *scene) {
	orders := [][]string{{"a", "b", "c"}, {"c", "b", "a"}}
	var holding atomic.Int64
	var all sync.WaitGroup
	for _, names := range orders {
		locks, err := lock.NewFenced(s.open(Options{}), nil)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = locks.Close(context.Background()) })
		all.Go(func() {
			for range 5 {
				c, err := locks.AcquireAll(s.Context(), names)
				if err != nil {
					s.Error(err)
					return
				}
				if n := holding.Add(1); n != 1 {
					s.Errorf("%d hold all names", n)
				}
				holding.Add(-1)
				if err := c.Release(s.Context()); err != nil {
					s.Error(err)
				}
			}
		})
	}
	s.receive(all.Wait, "the end of both")
}

// testServerClockJumps: a holder keeps its lock and tokens rise, wherever the API
// server's clock goes.
func testServerClockJumps(s *scene) {
	var ahead atomic.Int64
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Header.Set("Date", time.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
		}
		return answer, err
	})
	d, other := s.open(Options{}), s.open(Options{})
	for i, jump := range []time.Duration{0, years, -10 * time.Hour, 10 * time.Hour} {
		owner := fmt.Sprint("owner ", i)
		g := s.acquire(d, "n", owner)
		ahead.Store(int64(jump))
		if _, err := s.try(other, "n", "late"); !errors.Is(err, interlock.ErrHeld) {
			s.Fatalf("the clock went by %v, and another is granted the lock: %v", jump, err)
		}
		if g.Lease.Remaining() <= 0 {
			s.Fatalf("the clock went by %v, and the lease has ended", jump)
		}
		s.release(d, "n", owner)
		s.sees(other, "n", "it is free", func(now sight) bool { return now.holder() == "" })
		if next := s.acquire(other, "n", owner+"'s heir"); next.Token <= g.Token || driver.Plausible(next.Token.Counter(), time.Now()) != nil {
			s.Fatalf("the clock went by %v: token %d after %d", jump, next.Token, g.Token)
		}
		s.release(other, "n", owner+"'s heir")
		s.sees(d, "n", "it is free", func(now sight) bool { return now.holder() == "" })
	}
}
