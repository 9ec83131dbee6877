package observe

import (
	"context"
	"log/slog"

	"github.com/interlock-dev/interlock"
)

// LogLocks tells l what happens to locks: losses, failed releases, renewals that
// fail and claims that are held for long as warnings, the rest at debug level. Renewals
// that succeed are not logged. A nil l means slog.Default.
func LogLocks(l *slog.Logger) *Lock {
	if l == nil {
		l = slog.Default()
	}
	log := func(level slog.Level, message, name, owner string, attrs ...slog.Attr) {
		attrs = append([]slog.Attr{slog.String("lock", name), slog.String("owner", owner)}, attrs...)
		l.LogAttrs(context.Background(), level, message, attrs...)
	}
	return &Lock{
		Waiting: func(e LockWaiting) {
			log(slog.LevelDebug, "waiting for lock", e.Name, e.Owner,
				slog.Int("ahead", e.Ahead), slog.String("holder", e.Holder))
		},
		Acquired: func(e LockAcquired) {
			if e.Err != nil {
				log(slog.LevelDebug, "lock not acquired", e.Name, e.Owner, slog.Duration("wait", e.Wait), failure(e.Err))
				return
			}
			log(slog.LevelDebug, "lock acquired", e.Name, e.Owner, token(e.Token), slog.Duration("wait", e.Wait))
		},
		HandedOver: func(e LockHandedOver) {
			log(slog.LevelDebug, "lock handed over in process", e.Name, e.Owner, token(e.Token))
		},
		Renewed: func(e LockRenewed) {
			if e.Err != nil {
				log(slog.LevelWarn, "lock renewal failed", e.Name, e.Owner, slog.Duration("took", e.Took), failure(e.Err))
			}
		},
		HeldLong: func(e LockHeldLong) {
			log(slog.LevelWarn, "lock held for long", e.Name, e.Owner, token(e.Token),
				slog.Duration("held", e.Held), slog.Duration("max", e.Max))
		},
		Ended: func(e LockEnded) {
			level, message := slog.LevelWarn, "lock lost"
			if e.Cause == interlock.ErrReleased {
				level, message = slog.LevelDebug, "lock released"
			}
			log(level, message, e.Name, e.Owner, token(e.Token), slog.Duration("held", e.Held), failure(e.Cause))
		},
		ReleaseFailed: func(e LockReleaseFailed) {
			log(slog.LevelWarn, "lock release not confirmed, it is left to expire", e.Name, e.Owner, failure(e.Err))
		},
		Restarting: func(e LockRestarting) {
			log(slog.LevelWarn, "work under a lock failed, it starts again", e.Name, "", slog.Int("failed", e.Failed), failure(e.Err))
		},
	}
}

// token is a string, because many readers of JSON round numbers of that size.
func token(t interlock.Token) slog.Attr { return slog.String("token", t.String()) }

func failure(err error) slog.Attr { return slog.String("cause", err.Error()) }
