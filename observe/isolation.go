package observe

import "time"

// Isolation receives the events of transactions that are retried. Every hook may be nil. Hooks
// must return at once.
type Isolation struct {
	Retried func(IsolationRetried)
	Ended   func(IsolationEnded)
}

// IsolationRetried reports that the database undid a transaction because of concurrent ones,
// and that it is about to run again.
type IsolationRetried struct {
	Level   string        // of isolation, in lower case
	Attempt int           // that failed, from 1
	Wait    time.Duration // before the next one
	Err     error         // why
}

// IsolationEnded reports that a transaction has ended.
type IsolationEnded struct {
	Level    string // of isolation, in lower case
	Attempts int    // including the last one
	Took     time.Duration
	Err      error // nil if it was committed
}
