package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// StoreHarness tells the suite of a store how to reach it. S is the store's
// interface in package driver.
type StoreHarness[S any] struct {
	// Bubble runs one test; nil calls test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares an empty store for one test, whose clock is that of the
	// test give or take a few minutes; it cleans up by t.Cleanup. A test that
	// kills or pauses the server asks for one of its own by exclusive.
	Start func(t *testing.T, exclusive bool) StoreBackend[S]
	// Without says Servers for a store that has no server to break, LostReplies
	// for one that cannot lose them, and Durable for one that forgets. Whatever
	// it does not name must be there.
	Without Ability
}

// StoreBackend is one running store.
type StoreBackend[S any] interface {
	// Open opens the store as a further process would, on the same data, by way
	// of a path of its own that Faults can break.
	Open(t *testing.T) (S, error)
	// Beside opens it past every fault of the paths.
	Beside(t *testing.T) (S, error)
	// Faults is nil where there is no server to break (Without Servers). Its
	// DropReplies, if it is a ReplyDropper, may wait for the next request that
	// changes something.
	Faults() Faults
}

// storeTest is one test of a suite, and what it needs.
type storeTest[S any] struct {
	name  string
	needs Ability
	test  func(*storeScene[S])
}

// run runs those tests for which all is there.
func (h StoreHarness[S]) run(t *testing.T, tests []storeTest[S]) {
	for _, c := range tests {
		if c.needs&h.Without != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h.one(t, c.needs, c.test)
		})
	}
}

func (h StoreHarness[S]) one(t *testing.T, needs Ability, test func(*storeScene[S])) {
	bubble := h.Bubble
	if bubble == nil {
		bubble = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	bubble(t, func(t *testing.T) {
		b := h.Start(t, needs&(Servers|onPaths) == Servers)
		s := &storeScene[S]{T: t, backend: b, faults: b.Faults(), start: interlock.CounterAt(time.Now()),
			durable: h.Without&Durable == 0}
		_, drops := s.faults.(ReplyDropper)
		if needs&Servers != 0 && s.faults == nil || needs&LostReplies != 0 && !drops {
			t.Fatal("the harness lacks what this test needs, and Without does not say so")
		}
		s.store = s.open()
		test(s)
	})
}

// storeScene is one test with its store and a first opening of it.
type storeScene[S any] struct {
	*testing.T
	backend StoreBackend[S]
	faults  Faults
	store   S
	start   int64 // the counter of the present time
	durable bool
}

func (s *storeScene[S]) open() S {
	s.Helper()
	store, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return store
}

// beside opens the store past every fault.
func (s *storeScene[S]) beside() S {
	s.Helper()
	store, err := s.backend.Beside(s.T)
	if err != nil {
		s.Fatalf("open beside: %v", err)
	}
	return store
}

// token is one whose counter is so far from that of the present time.
func (s *storeScene[S]) token(ahead int64, sub int) interlock.Token {
	return newToken(s.T, s.start+ahead, sub)
}

// mustFail requires an error of a kind that is also another; nil is any.
func (s *storeScene[S]) mustFail(err error, kind interlock.ErrorKind, is error) {
	s.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		s.Fatalf("got %v (%v), want an error of kind %v (%v)", err, interlock.Kind(err), kind, is)
	}
}

// persist repeats what may be repeated, as the portable types do.
func (s *storeScene[S]) persist(what string, try func(context.Context) error) {
	s.Helper()
	for end := time.Now().Add(restarted); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		err := try(ctx)
		cancel()
		kind := interlock.Kind(err)
		switch {
		case err == nil:
			return
		case kind != interlock.Uncertain && kind != interlock.Retryable:
			s.Fatalf("%s: %v", what, err)
		case time.Now().After(end):
			s.Fatalf("%s: still no outcome after %v: %v", what, restarted, err)
		}
	}
}
