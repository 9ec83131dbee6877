package lock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

const (
	// fallback is how long Await relies on hints alone.
	fallback = 3 * time.Second
	// soonest is the least time between two looks that no hint asked for.
	soonest = 50 * time.Millisecond
)

// A View shows locks, and tells when to look again. Most drivers are one; see
// [ViewOf].
type View interface {
	driver.Inspector
	driver.Watcher
}

// ViewOf finds the view of a driver's locks. A driver without one is refused
// with an [*interlock.UnmetError] that says what it lacks.
func ViewOf(d driver.Fenced) (View, error) {
	view, ok := d.(View)
	if ok {
		return view, nil
	}
	var unmet []string
	if _, ok := d.(driver.Inspector); !ok {
		unmet = append(unmet, "it must show who holds a lock (driver.Inspector)")
	}
	if _, ok := d.(driver.Watcher); !ok {
		unmet = append(unmet, "it must tell when a lock changes (driver.Watcher)")
	}
	return nil, &interlock.UnmetError{Driver: d.Guarantees().Driver, Unmet: unmet}
}

// A Check of the locks below a prefix. changed names those that may be different
// since the last look, and is nil if any may be. It reports that it has seen what
// it looked for, or how soon the clock alone may change what it saw: the shortest
// driver.Contender.Expires, 0 if there is none.
type Check func(ctx context.Context, changed []string) (done bool, expires time.Duration, err error)

// Await calls look, one call at a time, until it is done: at once, and then
// whenever v hints at a change below prefix, something has expired, or a few
// seconds have passed without either. It opens no watch if the first look is
// done. A look whose error is Retryable or Uncertain is repeated as the requests of
// Acquire are. It blocks until ctx ends, whose cause it returns, or f is closed.
func (f *Fenced) Await(ctx context.Context, v View, prefix string, look Check) error {
	ctx, stop := join.Context(ctx, f.l.ctx)
	defer stop()
	w := &wait{locker: f.l, look: look, hinted: make(chan struct{}, 1)}
	if done, err := w.again(ctx, nil); done || err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		if err := w.watch(ctx, v, prefix); err != nil {
			cancel(err)
		}
	})
	return w.run(ctx)
}

// wait is one call of Await.
type wait struct {
	locker  *locker
	look    Check
	failed  int           // looks in a row
	expires time.Duration // as the last look reported

	hinted chan struct{} // capacity 1
	mu     sync.Mutex
	all    bool            // any name may have changed
	names  map[string]bool // these may
}

// watch keeps a watch open until ctx ends or the driver refuses.
func (w *wait) watch(ctx context.Context, v View, prefix string) error {
	for failed := 1; ; failed++ {
		err := v.Watch(ctx, prefix, func(name string) {
			failed = 1
			w.hint(name)
		})
		if ctx.Err() != nil {
			return nil
		}
		if err == nil || !worthRepeating(err) {
			return cmp.Or(err, errWatchEnded)
		}
		if !retries.Wait(ctx, failed) {
			return nil
		}
	}
}

var errWatchEnded error = &interlock.Error{Op: "watch locks", Kind: interlock.Bug,
	Err: errors.New("the driver ended a watch without an error")}

func (w *wait) hint(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" {
		w.all = true
	} else if w.names == nil {
		w.names = map[string]bool{name: true}
	} else {
		w.names[name] = true
	}
	select {
	case w.hinted <- struct{}{}:
	default: // it will see this one as well
	}
}

// changed takes what was hinted.
func (w *wait) changed() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.all {
		names = slices.Sorted(maps.Keys(w.names))
	}
	w.all, w.names = false, nil
	return names
}

func (w *wait) run(ctx context.Context) error {
	for {
		var changed []string
		timer := time.NewTimer(w.pace())
		select {
		case <-w.hinted:
			changed = w.changed()
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := w.again(ctx, changed); done || err != nil {
			return err
		}
	}
}

// pace is when to look again without a hint.
func (w *wait) pace() time.Duration {
	if w.expires <= 0 {
		return fallback
	}
	return min(fallback, max(soonest, w.expires))
}

// again looks until it has an answer.
func (w *wait) again(ctx context.Context, changed []string) (done bool, err error) {
	for {
		done, w.expires, err = w.look(ctx, changed)
		if err == nil || !worthRepeating(err) || ctx.Err() != nil {
			w.failed = 0
			return done, err
		}
		w.failed++
		if w.locker.tooOften(w.failed, false) || !retries.Wait(ctx, w.failed) {
			return false, err
		}
		changed = nil // what the failed look saw is lost
	}
}
