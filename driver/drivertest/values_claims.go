package drivertest

import (
	"bytes"
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// The claims of these tests are those of a lock in memory. The tests cover the store
// of their values, through two openings.

// testLockMetadata: a holder describes itself and is asked to release.
func testLockMetadata(s *valuesScene) {
	space := memory.NewSpace()
	here, there := s.locks(space, s.store), s.locks(space, s.open())
	first := s.claim(here)
	longest := bytes.Repeat([]byte("x"), lock.MaxMetadata)
	s.must(first.Describe(s.Context(), []byte("backup of db7")))
	s.must(first.Describe(s.Context(), longest))
	s.mustShow(there, first.Token(), longest)

	asked := make(chan lock.ReleaseRequest, 1)
	go func() {
		ask, err := first.ReleaseRequested(s.Context())
		if err != nil {
			s.Error(err)
		}
		asked <- ask
	}()
	s.must(there.RequestRelease(s.Context(), lockName, "a deploy"))
	want := lock.ReleaseRequest{By: "drivertest", Reason: "a deploy"}
	if got := <-asked; got != want {
		s.Fatalf("asked %+v, want %+v", got, want)
	}
	s.must(first.Release(s.Context()))

	second := s.claim(there)
	s.mustShow(here, second.Token(), nil)
	s.must(second.Describe(s.Context(), []byte("report")))
	late := driver.Value{Token: first.Token(), Data: []byte("late")}
	if err := s.store.Put(s.Context(), "described/"+lockName, late); !errors.Is(err, interlock.ErrStaleToken) {
		s.Fatalf("a late request of the former holder: %v", err)
	}
	s.mustShow(here, second.Token(), []byte("report"))
	s.must(here.RequestRelease(s.Context(), lockName, "another"))
	if got, err := second.ReleaseRequested(s.Context()); err != nil || got.Reason != "another" {
		s.Fatalf("asked %+v, %v", got, err)
	}
	s.must(second.Release(s.Context()))
}

// testSemaphoreSize checks that all processes see the permits that one of them sets.
func testSemaphoreSize(s *valuesScene) {
	space := memory.NewSpace()
	here, there := s.permits(space, s.store), s.permits(space, s.open())
	s.must(there.Resize(s.Context(), lockName, 2))
	for _, permits := range []*semaphore.Semaphore{here, there} {
		if n, err := permits.Size(s.Context(), lockName); err != nil || n != 2 {
			s.Fatalf("%d permits, %v", n, err)
		}
		p, err := permits.TryAcquire(s.Context(), lockName)
		s.must(err)
		defer func() { s.must(p.Release(s.Context())) }()
	}
	if _, err := here.TryAcquire(s.Context(), lockName); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("a third of two permits: %v", err)
	}
}

func (s *valuesScene) must(err error) {
	s.Helper()
	testbed.OK(s, err)
}

func (s *valuesScene) locks(space *memory.Space, v driver.Values) *lock.Fenced {
	s.Helper()
	d := space.Open(nil)
	l, err := lock.NewFenced(d, &lock.Options{Identity: "drivertest", Values: v, Handovers: -1})
	s.must(err)
	s.closing(l.Close, d.Close)
	return l
}

func (s *valuesScene) permits(space *memory.Space, v driver.Values) *semaphore.Semaphore {
	s.Helper()
	d := space.Open(nil)
	p, err := semaphore.New(d, 1, &semaphore.Options{Values: v})
	s.must(err)
	s.closing(p.Close, d.Close)
	return p
}

func (s *valuesScene) closing(all ...func(context.Context) error) {
	s.Cleanup(func() {
		for _, end := range all {
			if err := end(context.WithoutCancel(s.Context())); err != nil {
				s.Error(err)
			}
		}
	})
}

func (s *valuesScene) claim(l *lock.Fenced) *lock.Claim {
	s.Helper()
	c, err := l.Acquire(s.Context(), lockName)
	s.must(err)
	return c
}

func (s *valuesScene) mustShow(l *lock.Fenced, token interlock.Token, data []byte) {
	s.Helper()
	h, err := l.Show(s.Context(), lockName)
	if err != nil || h == nil || h.Token != token || !bytes.Equal(h.Data, data) {
		s.Fatalf("shown %+v, %v; want token %d and %.100q", h, err, token, data)
	}
}
