package observe

import "time"

// Isolation receives what happens to transactions that are run again. Every hook
// may be nil. Hooks must return at once.
type Isolation struct {
	Retried func(IsolationRetried)
	Ended   func(IsolationEnded)
}

// IsolationRetried: a transaction was undone, because of others that ran beside
// it, and is about to be run again.
type IsolationRetried struct {
	Level   string        // of isolation, in lower case
	Attempt int           // that failed, from 1
	Wait    time.Duration // before the next one
	Err     error         // why
}

// IsolationEnded: a transaction has ended.
type IsolationEnded struct {
	Level    string // of isolation, in lower case
	Attempts int    // how many there were, the last one included
	Took     time.Duration
	Err      error // nil if it was committed
}
