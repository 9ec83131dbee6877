package observe

import (
	"log/slog"
	"time"
)

// Keyed receives the events of the tasks of an executor. Every hook may be nil. Hooks must
// return at once and must not call the executor that reports. The executor measures times only
// for hooks that are set.
type Keyed struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Started func(KeyedStarted)
	Ended   func(KeyedEnded)
	Refused func(KeyedRefused)
}

// KeyedStarted reports that tasks of one key begin to run, together if they are a batch.
type KeyedStarted struct {
	Key   string
	Tasks int           // 1, or the size of the batch
	Wait  time.Duration // of the one that waited longest
	Depth int           // tasks of this key that are still queued
}

// KeyedEnded reports that these tasks have ended.
type KeyedEnded struct {
	Key   string
	Tasks int
	Took  time.Duration
	Err   error // the first task's that failed
}

// KeyedRefused reports that a task was refused, or left the queue before it began.
type KeyedRefused struct {
	Key string
	Err error // full, closed, reentered, or why its context ended
}
