package observe_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/observe"
)

// write does one guarded piece of work under a lock with hooks.
func write(hooks *observe.Lock) {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, &lock.Options{Hooks: hooks})
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	store := fence.NewStore(space.Fence())
	err = locks.Do(ctx, "report", func(ctx context.Context, c interlock.Claim) error {
		return store.Enter(ctx, c, "report")
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleLogLocks() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug, // losses alone would be warnings
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if slices.Contains([]string{slog.TimeKey, "owner", "token", "wait", "held"}, a.Key) {
				return slog.Attr{} // new in every run
			}
			return a
		},
	}))
	write(observe.LogLocks(logger)) // makes a lock with lock.Options{Hooks: …}
	// Output:
	// level=DEBUG msg="lock acquired" name=report
	// level=DEBUG msg="lock released" name=report cause="claim released"
}

// Hooks can count events for a metric; nil hooks are not called. Claims may end
// at the same time.
func ExampleLock() {
	var acquired, lost atomic.Int64
	write(&observe.Lock{
		Acquired: func(e observe.LockAcquired) {
			if e.Err == nil {
				acquired.Add(1)
			}
		},
		Ended: func(e observe.LockEnded) {
			if !errors.Is(e.Cause, interlock.ErrReleased) {
				lost.Add(1)
			}
		},
	})
	fmt.Println("acquired:", acquired.Load(), "lost:", lost.Load())
	// Output: acquired: 1 lost: 0
}
