package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testWatchOverACut checks that a deletion during the cut is seen after it.
func testWatchOverACut(s *scene) {
	s.watchOver(s.faults.Cut, func() { s.backend.Delete(s.T, lockName) }, s.faults.Heal)
}

// testWatchOverAKilledServer checks that the holder is gone after the restart or its TTL.
func testWatchOverAKilledServer(s *scene) {
	s.watchOver(s.faults.Kill, func() {}, func() {
		s.faults.Restart()
		s.backend.Delete(s.T, lockName)
	})
}

// testWatchOverAPausedServer does so for a server that hangs for longer than a session lives.
func testWatchOverAPausedServer(s *scene) {
	s.watchOver(s.faults.Pause, func() { time.Sleep(s.TTL) }, func() {
		s.faults.Resume()
		s.backend.Delete(s.T, lockName)
	})
}

// watchOver ends the holder's claim during an outage. A watcher must see that, and
// its watch must continue.
func (s *scene) watchOver(begin, during, end func()) {
	s.Helper()
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	w := s.watchNames(d, "")
	w.awaitState(d, lockName, "it is held", heldBy(holder))
	w.next()
	begin()
	during()
	end()
	w.awaitState(d, lockName, "it is free", nobodyHolds)
	next := s.contender(s.open(), lockName).persist()
	w.awaitState(d, lockName, "it is held again", heldBy(next))
	next.persistRelease()
	w.awaitState(d, lockName, "it is free again", nobodyHolds)
}

// testWatchEndsWithItsContext checks that it ends soon, with the cause and no later hint.
func testWatchEndsWithItsContext(s *scene) {
	d := s.open()
	ending, witness := s.watchNames(d, ""), s.watchNames(d, "")
	cause := errors.New("the caller stopped watching")
	if err := ending.end(cause); !errors.Is(err, cause) {
		s.Fatalf("a watch whose context ended returned %v, want the cause", err)
	}
	told := len(ending.hints())
	s.contender(d, lockName).acquire().release()
	witness.await("a change", exactly(lockName))
	if after := ending.hints()[told:]; len(after) > 0 {
		s.Fatalf("hints after Watch had returned: %q", after)
	}
}

// testWatchEndsWithClose checks that Close of the driver ends its watches.
func testWatchEndsWithClose(s *scene) {
	d := s.open()
	w := s.watchNames(d, "")
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	testbed.OK(s, d.Close(ctx))
	select {
	case <-w.done:
	case <-time.After(patience):
		s.Fatalf("a watch is not over %v after Close", patience)
	}
	if err := w.end(nil); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("a watch of a closed driver returned %v, want ErrClosed", err)
	}
}

// testWatchAfterClose includes a watch under a context that has already ended.
func testWatchAfterClose(s *scene) {
	d := s.open()
	ctx, cause := endedContext(s.T)
	if err := d.(driver.Watcher).Watch(ctx, "", func(string) {}); !errors.Is(err, cause) {
		s.Fatalf("a watch under an ended context returned %v, want the cause", err)
	}
	testbed.OK(s, d.Close(s.Context()))
	done := make(chan error, 1)
	go func() { done <- d.(driver.Watcher).Watch(s.Context(), "", func(string) {}) }()
	if err := s.wait(done, patience, "a watch of a closed driver"); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("a watch of a closed driver returned %v, want ErrClosed", err)
	}
}
