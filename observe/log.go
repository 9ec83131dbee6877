package observe

import (
	"errors"
	"log/slog"

	"github.com/interlock-dev/interlock"
)

// LogLocks returns hooks that log the events of locks: failures as warnings, as the default
// hooks do, and the rest at debug level. They do not log successful renewals. A nil l means
// slog.Default.
func LogLocks(l *slog.Logger) *Lock {
	h := (&Lock{Log: l}).WithDefaults()
	h.Waiting = func(e LockWaiting) { write(l, slog.LevelDebug, "waiting for lock", e, 0) }
	h.Acquired = func(e LockAcquired) {
		text := "lock acquired"
		if e.Err != nil {
			text = "lock not acquired"
		}
		write(l, slog.LevelDebug, text, e, 0)
	}
	h.HandedOver = func(e LockHandedOver) { write(l, slog.LevelDebug, "lock handed over in process", e, 0) }
	lost := h.Ended
	h.Ended = func(e LockEnded) {
		switch {
		case errors.Is(e.Cause, interlock.ErrReleased):
			write(l, slog.LevelDebug, "lock released", e, 0)
		case lost != nil: // as with Silent
			lost(e)
		}
	}
	return h
}
