package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// Limits of a journal. Data beyond them is refused as Definite.
const (
	MaxTransaction = 200           // bytes of a transaction's id
	MaxRecord      = 16 << 10      // bytes of a record's data; store longer data as a payload
	MaxRecords     = 32            // records of one Append
	MaxPayload     = 1<<20 + 1<<16 // bytes of a payload: 1 MiB of a user's data, and its envelope
)

// A Record is one entry of a transaction's journal. The store keeps it unchanged and does not
// interpret it.
type Record struct {
	Position int64           // from 1, without gaps; given by the store
	Kind     string          // what happened: 1 to 32 bytes of UTF-8 without NUL
	Step     string          // the step, at most 255 bytes of UTF-8 without NUL
	Data     []byte          // at most MaxRecord
	Sum      []byte          // chains it to the record before, at most 32 bytes
	Epoch    interlock.Token // of the writer; 0 if the writer did not own the shard
	Written  time.Time       // by the store's clock; given by the store
}

// A Head is the state of a transaction without its records.
type Head struct {
	Transaction string    // 1 to MaxTransaction bytes of UTF-8 without NUL
	Shard       int       // from 0
	Type        string    // the transaction's type, at most 255 bytes of UTF-8 without NUL
	Began       time.Time // Written of its first record
	Position    int64     // of its last record
	Sum         []byte    // of its last record
	// Due is when a coordinator must process the transaction, in whole milliseconds. It is zero
	// if and only if the transaction has ended.
	Due time.Time
	// Claimed reports that a Claim set Due: a coordinator is working on the transaction, or
	// was.
	Claimed bool
	Ended   time.Time // by the store's clock; zero until the end
}

// An Append is a request to add records to one transaction.
type Append struct {
	Transaction string
	Shard       int
	Type        string // stored by the first append of the transaction
	// Shards is the number of shards over which the appender spreads transactions; 0 skips the
	// check. If an append creates a transaction and Shards differs from the stored number, it
	// is refused with a *ShardsError. The check and the append are one atomic step.
	Shards int
	// Epoch is the epoch of the shard's owner. It is 0 for an appender that does not own the
	// shard; then only the position protects the append.
	Epoch interlock.Token
	// After is the position of the transaction's last record that the appender knows; 0 if the
	// transaction does not exist.
	After   int64
	Records []Record // 1 to MaxRecords, in order
	// Due is when the transaction must be processed next. It is zero if and only if these
	// records end the transaction.
	Due time.Time
	// Was is the previous due time that the appender knows, or zero. Some stores keep old due
	// times in their index; they remove this one.
	Was time.Time
	// Ended is set by the store if these records ended the transaction: the time of the end, by
	// the store's clock. It is zero if the store does not report it.
	Ended time.Time
}

// A PositionError is returned for an append whose After is not the transaction's position. The
// transaction has more records than expected, already exists, or does not exist. The error is
// Definite: read the records and decide again. After an append with an unknown outcome, the new
// records may be the caller's own.
type PositionError struct {
	Transaction string
	After       int64 // the position that was expected
	Found       Head  // the actual state; Position is 0 if the transaction does not exist
}

// Error returns a message with both positions.
func (e *PositionError) Error() string {
	if !e.Found.Ended.IsZero() {
		return fmt.Sprintf("transaction %q has ended at position %d", e.Transaction, e.Found.Position)
	}
	return fmt.Sprintf("transaction %q is at position %d, not at %d", e.Transaction, e.Found.Position, e.After)
}

// ErrorKind returns [interlock.Definite].
func (e *PositionError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Journal stores the records of transactions. Before Append returns, its records are durable
// and visible to all readers. A transaction that has not ended is never removed. A Journal is
// safe for concurrent use and never retries.
//
// Enter, Append, Claim and PutPayload write. Read, Payload, Due, DueShards and Heads return the
// state at some instant during the call. Forget and Unscheduled are for maintenance. Shards and
// Reassign change the sharding.
type Journal interface {
	// Enter raises the epoch of a shard. If a higher epoch has entered, the error is a
	// *interlock.StaleTokenError whose Resource is ShardName. An implausible epoch is refused
	// with interlock.ErrImplausibleToken; an equal one is accepted. After Enter has returned,
	// no append or claim under a lower epoch takes effect.
	Enter(ctx context.Context, shard int, epoch interlock.Token) error
	// Append applies each append completely or not at all, independently of the others. It
	// returns the outcomes in the order of appends. Each transaction may occur once. Append
	// takes as few durable steps as the store allows. Each append is one atomic step with these
	// checks:
	//
	//   - If Epoch is not the shard's, the error is a *interlock.StaleTokenError. It is a Bug
	//     if Epoch is higher, because no owner has entered with it.
	//   - If After is not the transaction's position, the error is a *PositionError.
	//
	// If another database transaction or a running Enter blocks an append, the store need not
	// wait: it may refuse the append with interlock.ErrHeld (Retryable).
	Append(ctx context.Context, appends []Append) []error
	// Claim selects at most limit unfinished transactions of a shard that are due at `by`,
	// earliest first. It moves their due times to `until` and returns the resulting heads. The
	// epoch is checked as in Append. The step is atomic for each transaction.
	Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]Head, error)
	// PutPayload stores the payload of a transaction under its sum, 1 to 32 bytes. It may
	// precede the transaction's first record. Repeating it refreshes the payload's time. Forget
	// uses that time to remove payloads whose transaction was never created.
	PutPayload(ctx context.Context, transaction string, sum, payload []byte) error

	// Read returns the head of a transaction and its records after a position, in order. If the
	// transaction does not exist, it returns the zero Head and no records.
	Read(ctx context.Context, transaction string, after int64) (Head, []Record, error)
	// Payload returns a stored payload, or nil if there is none.
	Payload(ctx context.Context, transaction string, sum []byte) ([]byte, error)
	// Due lists at most limit unfinished transactions of a shard, ordered by due time and then
	// id. It starts after the given head; the zero Head starts at the first.
	Due(ctx context.Context, shard int, behind Head, limit int) ([]Head, error)
	// DueShards returns the given shards that have an unfinished transaction due at `by`, in
	// ascending order, each once. It is one request for a hundred shards or more, however many
	// transactions are due. It omits none of these shards. It may also return a shard whose
	// transactions have since ended or are due later. A Claim up to that time that finds no
	// more of them corrects this.
	DueShards(ctx context.Context, shards []int, by time.Time) ([]int, error)
	// Heads lists at most limit transactions of all shards, including finished ones, in the
	// order of their ids. It starts after the given id.
	Heads(ctx context.Context, behind string, limit int) ([]Head, error)

	// Forget removes at most limit transactions that ended before a time of the store's clock,
	// with all their records. It also removes older payloads whose transaction does not exist.
	// It returns how many transactions it removed.
	Forget(ctx context.Context, endedBefore time.Time, limit int) (int, error)
	// Unscheduled counts the unfinished transactions that are missing from the due index. A
	// count above 0 means a defect of the store, or a manual change.
	Unscheduled(ctx context.Context) (int, error)

	// Shards sets the stored number of shards to `to` if it is `from` and `to` is not 0. It
	// returns the number stored after that; 0 means none. The store does not interpret the
	// number.
	Shards(ctx context.Context, from, to int) (int, error)
	// Reassign moves an unfinished transaction to another shard. If the transaction has left
	// the head's position or shard, Reassign does nothing. It checks no epoch.
	Reassign(ctx context.Context, h Head, shard int) error
}

// A ShardsError is returned if a journal is opened with another number of shards than it has.
// No coordinator would run a transaction in a wrong shard.
type ShardsError struct {
	Stored int // the journal's number; below zero while it is changed to -Stored; 0 if it has none
	Opened int // the caller's number
}

// Error returns a message with both numbers and the next step.
func (e *ShardsError) Error() string {
	if e.Stored < 0 {
		return fmt.Sprintf("a change of the journal to %d shards was begun and has not ended; complete it by SetShards, or `interlock saga shards --set %d`", -e.Stored, -e.Stored)
	}
	if e.Stored == 0 {
		return fmt.Sprintf("the journal was opened with %d shards and has no number of shards now: it was emptied or replaced; open it again, which stores the number", e.Opened)
	}
	return fmt.Sprintf("the journal has %d shards and was opened with %d; open it with %d (--shards %d), or stop all that use it and change the number by SetShards, or `interlock saga shards --set %d`",
		e.Stored, e.Opened, e.Stored, e.Stored, e.Opened)
}

// ErrorKind returns [interlock.Definite].
func (e *ShardsError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ShardName returns the name of a shard in errors.
func ShardName(shard int) string { return fmt.Sprintf("journal shard %d", shard) }

// CheckTransaction returns a Bug of op unless id is a valid transaction id.
func CheckTransaction(op, id string) error {
	return CheckName(op, "a transaction's id", id, MaxTransaction)
}

// CheckAfter returns a Bug unless behind is empty or a valid transaction id. List calls use it
// for the id after which they start.
func CheckAfter(behind string) error {
	if behind == "" {
		return nil
	}
	return CheckTransaction("list transactions", behind)
}

// CheckAppend validates the i-th of appends before anything is sent. The error is a Bug if an
// append is invalid, and Definite if a record is too large. Every [Journal] uses it.
func CheckAppend(appends []Append, i int) error {
	a := appends[i]
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return &interlock.Error{Op: "append", Name: a.Transaction, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	for _, other := range appends[:i] {
		if other.Transaction == a.Transaction {
			return refuse(interlock.Bug, "the transaction comes twice")
		}
	}
	if err := CheckTransaction("append", a.Transaction); err != nil {
		return err
	}
	if err := CheckText("a type", a.Type, 0, 255); err != nil {
		return refuse(interlock.Bug, "%w", err)
	}
	switch {
	case a.Shard < 0, a.After < 0, a.Epoch < 0:
		return refuse(interlock.Bug, "shard %d, position %d, epoch %d", a.Shard, a.After, a.Epoch)
	case len(a.Records) == 0 || len(a.Records) > MaxRecords:
		return refuse(interlock.Bug, "%d records, 1 to %d are allowed", len(a.Records), MaxRecords)
	}
	for _, r := range a.Records {
		err := CheckText("the kind of a record", r.Kind, 1, 32)
		if err == nil {
			err = CheckText("a step", r.Step, 0, 255)
		}
		switch {
		case err != nil:
			return refuse(interlock.Bug, "%w", err)
		case len(r.Sum) > 32:
			return refuse(interlock.Bug, "record %q of step %q has a sum of %d bytes, at most 32 are allowed", r.Kind, r.Step, len(r.Sum))
		case len(r.Data) > MaxRecord:
			return refuse(interlock.Definite, "a record has %d bytes, at most %d are allowed", len(r.Data), MaxRecord)
		}
	}
	return nil
}

// CheckPayload validates the arguments of PutPayload; its errors are as those of CheckAppend.
func CheckPayload(transaction string, sum, payload []byte) error {
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return &interlock.Error{Op: "keep payload", Name: transaction, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if err := CheckTransaction("keep payload", transaction); err != nil {
		return err
	}
	switch {
	case len(sum) == 0 || len(sum) > 32:
		return refuse(interlock.Bug, "a sum of %d bytes", len(sum))
	case len(payload) > MaxPayload:
		return refuse(interlock.Definite, "it has %d bytes, at most %d are allowed", len(payload), MaxPayload)
	}
	return nil
}
