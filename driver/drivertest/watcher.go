package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// RunWatcher runs the suite of driver.Watcher with the harness of the driver's locks.
// It needs Inspection.
func RunWatcher(t *testing.T, h Harness) {
	h.runAll(t, []suiteTest[*scene]{
		// Hints.
		{"WatchBeginsWithAHint", 0, named(testWatchBeginsWithAHint)},
		{"WatchReportsGrantAndRelease", 0, named(testWatchReportsGrantAndRelease)},
		{"WatchReportsWaiters", Queue, named(testWatchReportsWaiters)},
		{"WatchReportsDeletion", 0, testWatchReportsDeletion},
		{"WatchReportsACrashedHolder", 0, testWatchReportsACrashedHolder},
		{"WatchKeepsToItsPrefix", 0, named(testWatchKeepsToItsPrefix)},
		{"WatchedNamesAreData", 0, named(testWatchedNamesAreData)},
		// Interruptions.
		{"WatchOverACut", Servers | onPaths, testWatchOverACut},
		{"WatchOverAKilledServer", Servers, testWatchOverAKilledServer},
		{"WatchOverAPausedServer", Servers, testWatchOverAPausedServer},
		// End.
		{"WatchEndsWithItsContext", 0, named(testWatchEndsWithItsContext)},
		{"WatchEndsWithClose", 0, testWatchEndsWithClose},
		{"WatchAfterClose", 0, testWatchAfterClose},
	})
}

// watch is one call of Watch under test.
type watch struct {
	*recorder[string]
	s    *scene
	used int // hints that next has returned
}

// watchNames starts a watch and returns when it reports every later change.
func (s *scene) watchNames(d driver.Fenced, prefix string) *watch {
	s.Helper()
	watcher, ok := d.(driver.Watcher)
	if !ok {
		s.Fatal("the driver is no Watcher")
	}
	w := &watch{s: s, recorder: record(s.T, func(ctx context.Context, report func(string)) error {
		return watcher.Watch(ctx, prefix, report)
	})}
	w.await("the hint with which a watch begins", "")
	if first := w.hints()[0]; first != "" {
		s.Fatalf("the first hint is %q", first)
	}
	return w
}

// hints returns all hints so far.
func (w *watch) hints() []string {
	all, _ := w.all()
	return all
}

// next returns the hints since the last call.
func (w *watch) next() []string {
	all := w.hints()
	news := all[w.used:]
	w.used = len(all)
	return news
}

// await waits for a hint with that name among those that next has not returned. A hint about any name
// does not replace it, but is left to [named] if none with the name follows soon.
func (w *watch) await(what, name string) {
	w.s.Helper()
	anyName := false
	fits := func(hint string) bool {
		anyName = anyName || hint == ""
		return hint == name || anyName && w.s.unnamed != "" // the test is repeated anyway
	}
	for range 10 {
		switch {
		case w.hear(patience/10, fits):
			return
		case anyName:
			w.s.unnamed = what
			return
		}
	}
	w.s.Fatalf("%s: nothing within %v; the hints were %q", what, patience, w.hints())
}

// named repeats a test in which a hint about any name replaced one that was awaited by name. That is
// allowed if the driver reports any name at that moment for another reason, but not every time.
func named(test func(*scene)) func(*scene) {
	return func(s *scene) {
		for range 3 {
			s.unnamed = ""
			if test(s); s.unnamed == "" {
				return
			}
		}
		s.Fatalf("%s: there was no hint with its name, only about any", s.unnamed)
	}
}

// hear reports whether a matching hint arrives in time. It consumes the hints before
// it and those that arrived with it.
func (w *watch) hear(bound time.Duration, fits func(name string) bool) bool {
	w.s.Helper()
	for timeout := time.After(bound); ; {
		if slices.ContainsFunc(w.next(), fits) {
			return true
		}
		if !w.wait(timeout) {
			return false
		}
	}
}

// awaitState inspects d after each hint, and when the shown state has expired, until
// the state fits. It does not poll otherwise.
func (w *watch) awaitState(d driver.Fenced, name, what string, fits func(driver.LockState) bool) {
	w.s.Helper()
	end := time.Now().Add(patience + 2*w.s.TTL)
	for time.Now().Before(end) {
		again := time.Until(end)
		state, err := w.s.inspect(d, name)
		switch {
		case err != nil:
			again = 50 * time.Millisecond // no state was seen, so inspect again
		case fits(state):
			return
		case state.Holder != nil && state.Holder.Expires > 0:
			again = state.Holder.Expires + 100*time.Millisecond
		}
		w.hear(again, about(name))
	}
	w.s.Fatalf("a watcher that inspects after each hint did not see that %s; the hints were %q", what, w.hints())
}

func (s *scene) inspect(d driver.Fenced, name string) (driver.LockState, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), 2*time.Second)
	defer cancel()
	inspector, ok := d.(driver.Inspector)
	if !ok {
		s.Fatal("the driver is no Inspector")
	}
	return inspector.Lock(ctx, name)
}

// about returns a filter for hints about one name, which "" includes.
func about(name string) func(string) bool {
	return func(hint string) bool { return hint == name || hint == "" }
}

func heldBy(c *contender) func(driver.LockState) bool {
	return func(state driver.LockState) bool { return state.Holder != nil && state.Holder.Owner == c.req.Owner }
}

func nobodyHolds(state driver.LockState) bool { return state.Holder == nil }

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
	changed := s.contender(d, lockName).acquire()
	witness.await("a change", lockName)
	changed.release()
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
	testbed.Receive(s, w.done, "the end of a watch after Close")
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

// testWatchBeginsWithAHint checks that every change after the first hint is reported.
func testWatchBeginsWithAHint(s *scene) {
	holder := s.contender(s.open(), lockName).acquire() // an earlier change need not be reported
	d := s.open()
	w := s.watchNames(d, "")
	if state, err := s.inspect(d, lockName); err != nil || !heldBy(holder)(state) {
		s.Fatalf("at the first hint the inspector shows %+v, %v", state, err)
	}
	holder.release()
	w.await("the release", lockName)
}

// testWatchReportsGrantAndRelease checks that each of several watches reports changes by its own and
// another process, and that the end of one does not end another.
func testWatchReportsGrantAndRelease(s *scene) {
	d, other := s.open(), s.open()
	watches := []*watch{s.watchNames(d, "accounts/"), s.watchNames(other, lockName), s.watchNames(d, "")}
	report := func(what, state string, fits func(driver.LockState) bool) {
		s.Helper()
		for _, w := range watches {
			w.await(what, lockName)
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
	w.await("a waiter that came", lockName)
	w.awaitState(d, lockName, "one waits", waiting(1))
	done := staying.start(s.Context())
	w.await("another waiter", lockName)
	w.awaitState(d, lockName, "two wait", waiting(2))
	w.next()
	cancel()
	s.wait(left, patience, "a cancelled waiter")
	leaving.release()
	w.await("a waiter that gave up", lockName)
	w.awaitState(d, lockName, "one waits", waiting(1))
	w.next()
	holder.release()
	testbed.OK(s, s.wait(done, patience, "the waiter"))
	w.await("a hand-over", lockName)
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
	w.await("a change of the name that is the prefix", "accounts/4")
	held := s.contender(d, lockName).acquire() // a short state may be missed
	w.await("a change of a name with the prefix", lockName)
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
		if err := c.repeat(); errors.Is(err, interlock.ErrName) {
			continue
		} else if err != nil {
			s.Fatalf("name %q: %v", name, err)
		}
		held[name] = c
	}
	for name := range held {
		testbed.Eventually(s, "a grant of an odd name", patience, func() bool { return slices.ContainsFunc(all.hints()[1:], about(name)) })
		watches[name] = s.watchNames(d, name)
	}
	for _, c := range held {
		c.release()
	}
	for name, w := range watches {
		w.await("a release of an odd name", name)
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
