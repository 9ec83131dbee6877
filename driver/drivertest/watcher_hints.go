package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testWatchBeginsWithAHint checks that every change after the first hint is reported.
func testWatchBeginsWithAHint(s *scene) {
	holder := s.contender(s.open(), lockName).acquire() // an earlier change need not be reported
	d := s.open()
	w := s.watchNames(d, "")
	if state, err := s.inspect(d, lockName); err != nil || !heldBy(holder)(state) {
		s.Fatalf("at the first hint the inspector shows %+v, %v", state, err)
	}
	holder.release()
	w.await("the release", exactly(lockName))
}

// testWatchReportsGrantAndRelease checks that each of several watches reports changes by its own and
// another process, and that the end of one does not end another.
func testWatchReportsGrantAndRelease(s *scene) {
	d, other := s.open(), s.open()
	watches := []*watch{s.watchNames(d, "accounts/"), s.watchNames(other, lockName), s.watchNames(d, "")}
	report := func(what, state string, fits func(driver.LockState) bool) {
		s.Helper()
		for _, w := range watches {
			w.await(what, exactly(lockName))
			w.awaitState(d, lockName, state, fits)
			w.next()
		}
	}
	for i, from := range []driver.Fenced{other, d, other} {
		c := s.contender(from, lockName).acquire()
		report("a grant", "it is held", heldBy(c))
		c.release()
		report("a release", "it is free", nobodyHolds)
		if i == 0 {
			watches[2].end(nil)
			watches = watches[:2]
		}
	}
}

// testWatchReportsWaiters checks for hints about new, cancelled and granted waiters.
func testWatchReportsWaiters(s *scene) {
	d := s.open()
	holder := s.contender(d, lockName).acquire()
	w := s.watchNames(d, "")
	waiting := func(n int) func(driver.LockState) bool {
		return func(state driver.LockState) bool { return len(state.Waiters) == n }
	}
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	leaving, staying := s.contender(s.open(), lockName), s.contender(s.open(), lockName)
	left := leaving.start(ctx)
	w.await("a waiter that came", exactly(lockName))
	w.awaitState(d, lockName, "one waits", waiting(1))
	done := staying.start(s.Context())
	w.await("another waiter", exactly(lockName))
	w.awaitState(d, lockName, "two wait", waiting(2))
	w.next()
	cancel()
	s.wait(left, patience, "a cancelled waiter")
	leaving.release()
	w.await("a waiter that gave up", exactly(lockName))
	w.awaitState(d, lockName, "one waits", waiting(1))
	w.next()
	holder.release()
	testbed.OK(s, s.wait(done, patience, "the waiter"))
	w.await("a hand-over", exactly(lockName))
	w.awaitState(d, lockName, "the waiter holds", heldBy(staying))
	staying.release()
}

// testWatchReportsDeletion checks for a hint after an operator deletes the lock.
func testWatchReportsDeletion(s *scene) {
	d := s.open()
	s.contender(s.open(), lockName).acquire()
	w := s.watchNames(d, lockName)
	s.backend.Delete(s.T, lockName)
	w.awaitState(d, lockName, "it is free", nobodyHolds)
}

// testWatchReportsACrashedHolder checks that the loss is seen by a hint, or by another
// look when the holder has expired.
func testWatchReportsACrashedHolder(s *scene) {
	dying, d := s.open(), s.open()
	holder := s.contender(dying, lockName).acquire()
	w := s.watchNames(d, "")
	w.awaitState(d, lockName, "it is held", heldBy(holder))
	s.backend.Crash(s.T, dying)
	w.awaitState(d, lockName, "it is free", nobodyHolds)
}

// testWatchKeepsToItsPrefix checks that the prefix is a string, not a path.
func testWatchKeepsToItsPrefix(s *scene) {
	d := s.open()
	w := s.watchNames(d, "accounts/4")
	others := []string{"accounts", "accounts/", "accounts/5", "Accounts/42", "other", "x/accounts/42"}
	for _, name := range others {
		s.contender(d, name).acquire().release()
	}
	inside := s.contender(d, "accounts/4").acquire()
	w.await("a change of the name that is the prefix", exactly("accounts/4"))
	held := s.contender(d, lockName).acquire() // a short state may be missed
	w.await("a change of a name with the prefix", exactly(lockName))
	held.release()
	inside.release()
	for _, hint := range w.hints() {
		if hint != "" && hint != "accounts/4" && hint != lockName {
			s.Fatalf("a hint about %q; the hints were %q", hint, w.hints())
		}
	}
}

// testWatchedNamesAreData checks that hints have each name unchanged. It holds and watches all at
// the same time, so that a driver that polls is not waited for once per name.
func testWatchedNamesAreData(s *scene) {
	d := s.open()
	all := s.watchNames(d, "")
	held, watches := map[string]*contender{}, map[string]*watch{}
	for _, name := range oddNames {
		c := s.contender(d, name)
		c.req.NoWait = true
		if err := c.try(s.Context()); errors.Is(err, interlock.ErrName) {
			continue
		} else if err != nil {
			s.Fatalf("name %q: %v", name, err)
		}
		held[name] = c
	}
	for name := range held {
		testbed.Eventually(s, "a grant of an odd name", patience, func() bool { return slices.ContainsFunc(all.hints()[1:], exactly(name)) })
		watches[name] = s.watchNames(d, name)
	}
	for _, c := range held {
		c.release()
	}
	for name, w := range watches {
		w.await("a release of an odd name", exactly(name))
		w.end(nil)
	}
	known := map[string]bool{"": true}
	for _, name := range oddNames {
		known[name] = true
	}
	for _, hint := range all.hints() {
		if !known[hint] {
			s.Fatalf("a hint about %q, which is not in use", hint)
		}
	}
}
