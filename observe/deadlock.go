package observe

import "log/slog"

// Deadlock receives the events of a detector of deadlocks. Every hook may be nil. A goroutine of
// the detector calls hooks one at a time. They should return at once. A hook that blocks delays
// later events: at most 65,536 wait, further ones are dropped. Detector.Close waits for them; no
// hook may call it.
type Deadlock struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Found  func(DeadlockFound)
	Failed func(DeadlockFailed)
}

// DeadlockFound reports that a wait of this process was ended because of a deadlock.
type DeadlockFound struct {
	Task   string // its name
	Awaits string // the name of the resource
	Err    error  // a *deadlock.Error, which lists the cycle
}

// DeadlockFailed reports that waits could not be read or published. Deadlocks over that board
// are not found meanwhile.
type DeadlockFailed struct{ Err error }
