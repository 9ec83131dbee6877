package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Fence receives what a guard of a key-value store detects. Every hook may be nil. Hooks must
// return at once; several calls may run them concurrently.
type Fence struct {
	// Log receives what a nil hook would; nil means slog.Default; [Silent] disables logging.
	Log *slog.Logger

	Bypassed func(FenceBypassed)
}

// WithDefaults returns h with a hook that logs writes that bypassed the guard.
func (h *Fence) WithDefaults() *Fence {
	r := copyOf(h)
	OnNil(&r.Bypassed, r.Log, warn, always[FenceBypassed]("guarded key was written without the guard"))
	return r
}

// FenceBypassed reports that a guarded write replaced a value that was written without the
// guard after the last Enter of the resource.
type FenceBypassed struct {
	Resource string
	Key      string
	Owner    string          // who made the guarded write
	Token    interlock.Token // of that write
}

// Version receives the events of optimistic updates. Every hook may be nil. Hooks must
// return at once; several updates may run them concurrently.
type Version struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Attempted func(VersionAttempted)
	Retrying  func(VersionRetrying)
	Exhausted func(VersionExhausted)
}

// WithDefaults returns h with a hook that logs updates without success.
func (h *Version) WithDefaults() *Version {
	r := copyOf(h)
	OnNil(&r.Exhausted, r.Log, warn, always[VersionExhausted]("update met a conflict at its last attempt"))
	return r
}

// VersionAttempted reports that an attempt of an update ended.
type VersionAttempted struct {
	Name     string // the entity
	Attempt  int    // from 1
	Conflict bool   // another writer was faster: nothing was changed
	Err      error  // nil if the update is done
}

// VersionRetrying reports that an update waits before its next attempt.
type VersionRetrying struct {
	Name    string
	Attempt int // the one that failed
	Delay   time.Duration
	Err     error // of that attempt
}

// VersionExhausted reports that the last attempt of an update met a conflict too.
type VersionExhausted struct {
	Name      string
	Attempts  int
	HandedOff bool // Options.HandOff continues the update
}

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

// Stock receives the events of a stock of items. Every hook may be nil. Hooks
// must return at once. In a SQL transaction of the caller, hooks run when the
// statement was answered. If the transaction rolls back, their event did not
// happen.
type Stock struct {
	Short     func(StockShort)
	GivenAway func(StockGivenAway)
}

// StockShort reports that a reservation or an adjustment was refused for too few
// units.
type StockShort struct {
	Item      string
	Want      int64 // requested units
	Available int64 // free units
}

// StockGivenAway reports that a reservation expired and another caller took its
// units of one item. It can no longer be confirmed. Only SQL tables report it.
type StockGivenAway struct {
	Item        string
	Reservation string
	N           int64
}

// Once receives the results of an inbox's checks. Every hook may be nil. Hooks must return at
// once; they run inside the caller's transaction, and run again if that is retried.
type Once struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Duplicate  func(OnceMessage)
	Mismatched func(OnceMessage)
	Gap        func(OnceGap)
	Cleaned    func(OnceCleaned)
}

// WithDefaults returns h with hooks that log mismatched messages and failed cleaning.
func (h *Once) WithDefaults() *Once {
	r := copyOf(h)
	OnNil(&r.Mismatched, r.Log, warn, always[OnceMessage]("message repeated with another payload"))
	OnNil(&r.Cleaned, r.Log, warn, whenFailed("inbox not cleaned", func(e OnceCleaned) error { return e.Err }))
	return r
}

// OnceMessage reports a message that did not run: its effect exists already, or its payload
// differs from the recorded one.
type OnceMessage struct {
	Consumer   string
	ID         string // may be empty for one with a sequence number
	Key        string // of its sequence; empty without one
	Epoch, Seq int64  // Seq is 0 without one
}

// OnceGap reports a message that came before an earlier one of its key.
type OnceGap struct {
	Consumer  string
	Key       string
	Epoch     int64
	Want, Got int64 // sequence numbers
}

// OnceCleaned reports that old records were deleted, or could not be.
type OnceCleaned struct {
	Consumer   string
	Rows       int64 // that were deleted, 0 where a whole generation was dropped
	Generation int64 // that is written from now on; 0 where rows were deleted
	Err        error
}

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

// WithDefaults returns h with hooks that log leases that are lost or not renewed, and
// unfinished requests without an attempt.
func (h *Idempotency) WithDefaults() *Idempotency {
	r := copyOf(h)
	OnNil(&r.Renewed, r.Log, warn, whenFailed("request lease not renewed", func(e IdempotencyRenewed) error { return e.Err }))
	OnNil(&r.Lost, r.Log, warn, always[IdempotencyLost]("request lease lost during the work"))
	OnNil(&r.Unfinished, r.Log, warn, always[IdempotencyUnfinished]("request unfinished"))
	return r
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

// Wire receives the results of a service's token checks. Every hook may be nil. Hooks must
// return at once.
type Wire struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Admitted func(WireAdmitted)
	Refused  func(WireRefused)
}

// WithDefaults returns h with a hook that logs requests that were refused.
func (h *Wire) WithDefaults() *Wire {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, always[WireRefused]("request refused"))
	return r
}

// WireAdmitted reports that a request was admitted. A guard may still reject its token.
type WireAdmitted struct {
	Resource  string
	Owner     string
	Token     interlock.Token
	Remaining time.Duration // time for the request
}

// WireRefused reports that a request, or a later message of a stream, was refused before its
// handler ran. Without a valid token, only Reason and Err are set.
type WireRefused struct {
	Resource string
	Owner    string
	Token    interlock.Token
	Reason   string // a reason of package guard/wire
	Err      error
}

// Proxy receives the events of a guarding proxy's calls to a resource that cannot check
// tokens. Every hook may be nil. Hooks must return at once.
type Proxy struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Sent    func(ProxySent)
	Refused func(ProxyRefused)
}

// WithDefaults returns h with hooks that log calls that were refused or whose outcome
// is unknown.
func (h *Proxy) WithDefaults() *Proxy {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, always[ProxyRefused]("call refused"))
	OnNil(&r.Sent, r.Log, warn, whenFailed("call outcome unknown or not recorded", func(e ProxySent) error { return e.Err }))
	return r
}

// ProxySent reports that a call was sent, or may have been.
type ProxySent struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration // for its turn, and to enter
	Took      time.Duration
	Status    int   // of the answer; 0 if there is none
	Err       error // why the outcome is not known, or was not recorded; nil if it was
}

// ProxyRefused reports that a call was not sent.
type ProxyRefused struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration
	Err       error
}
