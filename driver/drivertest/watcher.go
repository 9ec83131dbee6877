package drivertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// RunWatcher runs the suite of driver.Watcher with the harness of the driver's locks.
// It needs Inspection.
func RunWatcher(t *testing.T, h Harness) {
	h.runAll(t, []suiteTest[*scene]{
		// Hints.
		{"WatchBeginsWithAHint", 0, testWatchBeginsWithAHint},
		{"WatchReportsGrantAndRelease", 0, testWatchReportsGrantAndRelease},
		{"WatchReportsWaiters", Queue, testWatchReportsWaiters},
		{"WatchReportsDeletion", 0, testWatchReportsDeletion},
		{"WatchReportsACrashedHolder", 0, testWatchReportsACrashedHolder},
		{"WatchKeepsToItsPrefix", 0, testWatchKeepsToItsPrefix},
		{"WatchedNamesAreData", 0, testWatchedNamesAreData},
		// Interruptions.
		{"WatchOverACut", Servers | onPaths, testWatchOverACut},
		{"WatchOverAKilledServer", Servers, testWatchOverAKilledServer},
		{"WatchOverAPausedServer", Servers, testWatchOverAPausedServer},
		// End.
		{"WatchEndsWithItsContext", 0, testWatchEndsWithItsContext},
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
	w.await("the hint with which a watch begins", func(name string) bool { return name == "" })
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

// await waits for a matching hint among those that next has not returned.
func (w *watch) await(what string, fits func(name string) bool) {
	w.s.Helper()
	if !w.hear(patience, fits) {
		w.s.Fatalf("%s: nothing within %v; the hints were %q", what, patience, w.hints())
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
	about := func(hint string) bool { return hint == "" || hint == name }
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
		w.hear(again, about)
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

// exactly returns a filter for hints about one name, which "" includes.
func exactly(name string) func(string) bool {
	return func(hint string) bool { return hint == name || hint == "" }
}

func heldBy(c *contender) func(driver.LockState) bool {
	return func(state driver.LockState) bool { return state.Holder != nil && state.Holder.Owner == c.req.Owner }
}

func nobodyHolds(state driver.LockState) bool { return state.Holder == nil }
