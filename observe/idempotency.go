package observe

import (
	"log/slog"
	"time"
)

// Idempotency receives the events of idempotent requests. Every hook may be nil. Hooks should
// return at once and must not call the store that reports. A goroutine of the store calls Renewed,
// one event at a time; if it blocks, at most 65,536 events wait, further ones are dropped, and
// Close waits for them. Another hook that blocks delays the request, or the pass of the Completer or
// Reaper, that called it.
type Idempotency struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Answered   func(IdempotencyAnswered)
	Renewed    func(IdempotencyRenewed)
	Lost       func(IdempotencyLost)
	Unfinished func(IdempotencyUnfinished)
	Reaped     func(IdempotencyReaped)
}

// IdempotencyAnswered reports that a request has a response, or was refused.
type IdempotencyAnswered struct {
	Scope, Operation, Key string
	Attempt               int           // that gave the answer; 0 if none was made
	Replayed              bool          // an earlier attempt gave the answer; nothing ran
	Kept                  bool          // every later retry gets this answer
	Took                  time.Duration // from the request to this
	Err                   error         // why there is no answer
}

// IdempotencyRenewed reports that the lease of an attempt could not be renewed. The store
// retries while the lease lasts.
type IdempotencyRenewed struct {
	Scope, Operation, Key string
	Attempt               int
	Err                   error
}

// IdempotencyLost reports that a running attempt lost its lease. If another attempt has begun,
// its later commits are rejected.
type IdempotencyLost struct {
	Scope, Operation, Key string
	Attempt               int
	Cause                 error
}

// IdempotencyUnfinished reports an unfinished request without a running attempt. It may have
// effects, and its client has no response.
type IdempotencyUnfinished struct {
	Scope, Operation, Key string
	Attempt               int           // how many were made
	Age                   time.Duration // since the first
	Lapsed                time.Duration // since the last one's lease
	Discarded             bool          // the record was removed for its age
	Err                   error         // why it could not be finished now; nil if that was not tried
}

// IdempotencyReaped reports that expired records were deleted.
type IdempotencyReaped struct {
	Removed    int
	Unfinished int // that were found and left alone
}
