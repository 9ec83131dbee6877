package observe

import (
	"log/slog"
	"time"
)

// Idempotency receives what happens to requests that must take effect once. Every
// hook may be nil. Hooks must return at once and must not call the store that
// reports.
type Idempotency struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Answered   func(IdempotencyAnswered)
	Renewed    func(IdempotencyRenewed)
	Lost       func(IdempotencyLost)
	Unfinished func(IdempotencyUnfinished)
	Reaped     func(IdempotencyReaped)
}

// IdempotencyAnswered: a request has an answer, or was refused.
type IdempotencyAnswered struct {
	Scope, Operation, Key string
	Attempt               int           // that gave the answer; 0 if none was made
	Replayed              bool          // it was answered before, and nothing was run
	Kept                  bool          // the answer is what every later retry will have
	Took                  time.Duration // from the request to this
	Err                   error         // why there is no answer
}

// IdempotencyRenewed: the lease of an attempt could not be renewed. It is tried
// again as long as the lease lasts.
type IdempotencyRenewed struct {
	Scope, Operation, Key string
	Attempt               int
	Err                   error
}

// IdempotencyLost: an attempt lost its lease while it was at work: what it commits
// from now on is refused if another attempt has begun.
type IdempotencyLost struct {
	Scope, Operation, Key string
	Attempt               int
	Cause                 error
}

// IdempotencyUnfinished: a request is unfinished, and nobody works on it. It has
// effects, perhaps, and its client has no answer.
type IdempotencyUnfinished struct {
	Scope, Operation, Key string
	Attempt               int           // how many were made
	Age                   time.Duration // since the first
	Lapsed                time.Duration // since the last one's lease
	Discarded             bool          // the record was removed for its age
	Err                   error         // why it could not be finished now; nil if that was not tried
}

// IdempotencyReaped: records past their time were removed.
type IdempotencyReaped struct {
	Removed    int
	Unfinished int // that were found and left alone
}
