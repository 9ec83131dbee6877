package drivertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// RunWatcher runs what the suite asks of a driver.Watcher, with the harness of
// the driver's locks. It needs Inspection.
func RunWatcher(t *testing.T, h Harness) {
	h.runAll(t, []lockTest{
		// Hints.
		{"WatchBeginsWithAHint", 0, testWatchBeginsWithAHint},
		{"WatchTellsGrantAndRelease", 0, testWatchTellsGrantAndRelease},
		{"WatchTellsWaiters", Queue, testWatchTellsWaiters},
		{"WatchTellsDeletion", 0, testWatchTellsDeletion},
		{"WatchSeesACrashedHolderGo", 0, testWatchSeesACrashedHolderGo},
		{"WatchKeepsToItsPrefix", 0, testWatchKeepsToItsPrefix},
		{"WatchedNamesAreData", 0, testWatchedNamesAreData},
		{"WatchesAreManyAtOnce", 0, testWatchesAreManyAtOnce},
		// Interruptions.
		{"WatchOverACut", Servers | onPaths, testWatchOverACut},
		{"WatchOverAKilledServer", Servers, testWatchOverAKilledServer},
		{"WatchOverAPausedServer", Servers, testWatchOverAPausedServer},
		// Its end.
		{"WatchEndsWithItsContext", 0, testWatchEndsWithItsContext},
		{"WatchEndsWithClose", 0, testWatchEndsWithClose},
		{"WatchAfterAnEnd", 0, testWatchAfterAnEnd},
	})
}

// watch is one call of Watch under test. It repeats what may be repeated, as
// the portable types do, and keeps all hints.
type watch struct {
	s      *scene
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is over
	heard  chan struct{} // there are new hints; capacity 1

	calls int // of changed; not guarded, so that the race detector sees calls that overlap

	mu     sync.Mutex
	hints  []string
	looked int   // hints that have been looked at
	ended  bool  // the present call of Watch has returned
	late   int   // hints after that
	err    error // the last one
}

// watchNames watches and returns when changes are not missed any more.
func (s *scene) watchNames(d driver.Fenced, prefix string) *watch {
	s.Helper()
	w := s.startWatch(d, prefix)
	w.await("the hint with which a watch begins", func(name string) bool { return name == "" })
	if first := w.all()[0]; first != "" {
		s.Fatalf("the first hint is %q", first)
	}
	return w
}

func (s *scene) startWatch(d driver.Fenced, prefix string) *watch {
	s.Helper()
	watcher, ok := d.(driver.Watcher)
	if !ok {
		s.Fatal("the driver is no Watcher")
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(s.Context()))
	w := &watch{s: s, cancel: cancel, done: make(chan struct{}), heard: make(chan struct{}, 1)}
	go func() {
		defer close(w.done)
		for w.once(ctx, watcher, prefix) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	s.Cleanup(func() { w.end(nil) })
	return w
}

// once calls Watch and reports whether it may be called again.
func (w *watch) once(ctx context.Context, watcher driver.Watcher, prefix string) bool {
	w.mu.Lock()
	w.ended = false
	w.mu.Unlock()
	err := watcher.Watch(ctx, prefix, w.changed)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.err = true, err
	return interlock.Kind(err) == interlock.Retryable
}

func (w *watch) changed(name string) {
	w.calls++
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		w.late++
	}
	w.hints = append(w.hints, name)
	select {
	case w.heard <- struct{}{}:
	default:
	}
}

// all is every hint so far.
func (w *watch) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.hints...)
}

// next takes the hints that no await has looked at.
func (w *watch) next() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := w.hints[w.looked:]
	w.looked = len(w.hints)
	return append([]string(nil), news...)
}

// await waits for a hint that fits, among those that no await has looked at.
func (w *watch) await(what string, fits func(name string) bool) {
	w.s.Helper()
	if !w.hear(patience, fits) {
		w.s.Fatalf("%s: nothing within %v; told were %q", what, patience, w.all())
	}
}

// hear reports whether a hint that fits comes in time. The hints before it are
// used up; those that came with it are, too.
func (w *watch) hear(bound time.Duration, fits func(name string) bool) bool {
	timeout := time.NewTimer(bound)
	defer timeout.Stop()
	for {
		for _, name := range w.next() {
			if fits(name) {
				return true
			}
		}
		select {
		case <-w.heard:
		case <-timeout.C:
			return false
		case <-w.done:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.s.Fatalf("the watch is over: %v", w.err)
		}
	}
}

// awaitState looks at the Inspector of d when there was a hint, and when what
// expires by itself has expired, but not otherwise, until what it sees fits.
func (w *watch) awaitState(d driver.Fenced, name, what string, fits func(driver.LockState) bool) {
	w.s.Helper()
	about := func(hint string) bool { return hint == "" || hint == name }
	end := time.Now().Add(patience + 2*w.s.TTL)
	for time.Now().Before(end) {
		again := time.Until(end)
		state, err := w.s.inspect(d, name)
		switch {
		case err != nil:
			again = 50 * time.Millisecond // nothing was seen, so look again
		case fits(state):
			return
		case state.Holder != nil && state.Holder.Expires > 0:
			again = state.Holder.Expires + 100*time.Millisecond
		}
		w.hear(again, about)
	}
	w.s.Fatalf("a watcher who looks when told to did not see that %s; told were %q", what, w.all())
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

// end ends the watch with a cause, waits for that and returns Watch's error.
func (w *watch) end(cause error) error {
	w.s.Helper()
	w.cancel(cause)
	select {
	case <-w.done:
	case <-time.After(patience):
		w.s.Fatalf("a watch is not over %v after its context", patience)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late > 0 {
		w.s.Fatalf("%d hints came after Watch had returned", w.late)
	}
	return w.err
}

// exactly is for hints about one name; any of them is about it too.
func exactly(name string) func(string) bool {
	return func(hint string) bool { return hint == name || hint == "" }
}

func heldBy(c *contender) func(driver.LockState) bool {
	return func(state driver.LockState) bool { return state.Holder != nil && state.Holder.Owner == c.req.Owner }
}

func nobodyHolds(state driver.LockState) bool { return state.Holder == nil }
