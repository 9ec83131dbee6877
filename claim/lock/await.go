package lock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

const (
	// fallback is the longest pause between two looks.
	fallback = 3 * time.Second
	// soonest is the shortest pause before a look without a hint.
	soonest = 50 * time.Millisecond
)

// A View shows locks and signals when to look again. Most drivers implement it; see [ViewOf].
type View interface {
	driver.Inspector
	driver.Watcher
}

// ViewOf returns d as a View. If d lacks an interface, the error is an [*interlock.UnmetError]
// that names it.
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
		unmet = append(unmet, "it must report changes of locks (driver.Watcher)")
	}
	return nil, &interlock.UnmetError{Driver: d.Guarantees().Driver, Unmet: unmet}
}

// A Check inspects the locks below a prefix. The names in changed may have changed since the
// last call; if changed is nil, any may have. Check reports whether it has found its condition.
// If not, expires is how soon the clock alone may change the result: the shortest
// driver.Contender.Expires, or 0 if there is none.
type Check func(ctx context.Context, changed []string) (done bool, expires time.Duration, err error)

// Await calls look until look is done, one call at a time. It calls look at once. It repeats
// the call when v signals a change below prefix, when something has expired, and after a few
// seconds without either. If the first call is done, Await opens no watch. If the error of look
// is Retryable or Uncertain, Await retries as Acquire does. Await blocks until ctx ends, and
// then returns the cause of ctx, or until f is closed.
func (f *Fenced) Await(ctx context.Context, v View, prefix string, look Check) error {
	ctx, stop := join.Context(ctx, f.l.ctx)
	defer stop()
	w := &wait{locker: f.l, look: look, hints: driver.NewMailbox("", 0)}
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
	expires time.Duration // of the last look
	hints   *driver.Mailbox
}

// watch keeps a watch open until ctx ends or the driver refuses.
func (w *wait) watch(ctx context.Context, v View, prefix string) error {
	for failed := 1; ; failed++ {
		err := v.Watch(ctx, prefix, func(name string) {
			failed = 1
			w.hints.Add(name)
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

func (w *wait) run(ctx context.Context) error {
	for {
		var changed []string
		select {
		case <-w.hints.Woken():
			names, missed := w.hints.Take()
			if !missed {
				changed = names
			}
		case <-time.After(w.pace()):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := w.again(ctx, changed); done || err != nil {
			return err
		}
	}
}

// pace returns the pause before a look without a hint.
func (w *wait) pace() time.Duration {
	if w.expires <= 0 {
		return fallback
	}
	return min(fallback, max(soonest, w.expires))
}

// again looks, and retries failed looks.
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
		changed = nil // the changes that the failed look had are unknown
	}
}
