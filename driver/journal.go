package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// Bounds of a journal. What is beyond them is refused as Definite.
const (
	MaxTransaction = 200           // bytes of a transaction's id
	MaxRecord      = 16 << 10      // bytes of a record's data; what is longer is a payload
	MaxRecords     = 32            // records of one Append
	MaxPayload     = 1<<20 + 1<<16 // bytes of a payload: 1 MiB of a user, and what is written around it
)

// A Record is one entry of a transaction's journal. The store keeps it as it is
// and reads nothing into it.
type Record struct {
	Position int64           // from 1, without gaps; given by the store
	Kind     string          // what happened: 1 to 32 bytes of UTF-8 without NUL
	Step     string          // of what, at most 255 bytes of UTF-8 without NUL
	Data     []byte          // at most MaxRecord
	Sum      []byte          // chains it to the record before, at most 32 bytes
	Epoch    interlock.Token // under which it was written; 0 if by nobody who owned the shard
	Written  time.Time       // by the store's clock; given by the store
}

// A Head is what a journal knows of a transaction without reading its records.
type Head struct {
	Transaction string    // 1 to MaxTransaction bytes of UTF-8 without NUL
	Shard       int       // from 0
	Type        string    // what it is an instance of, at most 255 bytes of UTF-8 without NUL
	Began       time.Time // Written of its first record
	Position    int64     // of its last record
	Sum         []byte    // of its last record
	// Due is when it has to be looked at, in whole milliseconds; zero if and only
	// if it has ended.
	Due time.Time
	// Claimed says that Due was set by a Claim: somebody is at work on it, or was.
	Claimed bool
	Ended   time.Time // by the store's clock; zero while it goes on
}

// An Append asks to add records to one transaction.
type Append struct {
	Transaction string
	Shard       int
	Type        string // kept from the first append of the transaction
	// Shards is over how many shards the appender spreads transactions; 0 is not said.
	// An append that begins a transaction is refused with a *ShardsError if that is not
	// the number that the store keeps, in one atomic step with the append.
	Shards int
	// Epoch is that of the shard's owner, or 0: an append by somebody who does not
	// own the shard, which the position alone protects.
	Epoch interlock.Token
	// After is the position of the transaction's last record, as the appender
	// knows it; 0 if the transaction does not exist.
	After   int64
	Records []Record // 1 to MaxRecords, in order
	// Due is when the transaction has to be looked at next; zero if these records
	// end it, and only then.
	Due time.Time
	// Was is when it was due before, as far as the appender knows, or zero. A store whose
	// index keeps due times that a transaction has left removes that one.
	Was time.Time
	// Ended is set by the store when these records have ended the transaction: when they did,
	// by its clock. Zero where the store does not say.
	Ended time.Time
}

// A PositionError is the refusal of an append to a transaction that is not where
// the appender thinks it is: it has grown since, it exists already, or does not.
// It is Definite: read the records, and decide again. After an append whose outcome
// was not known it may be one's own records that are there.
type PositionError struct {
	Transaction string
	After       int64 // the position that was expected
	Found       Head  // where it is; Position is 0 if it does not exist
}

// Error shows both positions.
func (e *PositionError) Error() string {
	if !e.Found.Ended.IsZero() {
		return fmt.Sprintf("transaction %q has ended at position %d", e.Transaction, e.Found.Position)
	}
	return fmt.Sprintf("transaction %q is at position %d, not at %d", e.Transaction, e.Found.Position, e.After)
}

// ErrorKind is [interlock.Definite].
func (e *PositionError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Journal keeps the records of transactions. Records that were appended are
// durable, and there for everybody, before Append returns. Nothing that has not
// ended is ever removed. It is safe for concurrent use and retries nothing.
//
// Enter, Append, Claim and PutPayload write. The next five methods show the journal as it
// is at some instant during the call. Forget and Unscheduled keep it small and sound;
// Shards and Reassign spread it over shards.
type Journal interface {
	// Enter raises the epoch of a shard. A lower one than has entered is refused
	// with a *interlock.StaleTokenError whose Resource is ShardName, an implausible
	// one with interlock.ErrImplausibleToken; an equal one passes. Once Enter has
	// returned, no append or claim under a lower epoch takes effect.
	Enter(ctx context.Context, shard int, epoch interlock.Token) error
	// Append does each append wholly or not at all, independently of the others,
	// and returns the outcome of each, in their order; a transaction comes once at
	// most. It takes as few durable steps as the store can do with. An append under
	// an epoch that is not the shard's is refused with a *interlock.StaleTokenError
	// (Bug if it is higher: nobody entered with it), one whose After is not the
	// transaction's position with a *PositionError. Those checks are one atomic step
	// with the append. What a database transaction of somebody else holds, or an Enter
	// that is under way, may be refused with interlock.ErrHeld (Retryable) instead of
	// waiting for it.
	Append(ctx context.Context, appends []Append) []error
	// Claim moves the due time of the earliest unfinished transactions of a shard
	// that are due at `by`, at most limit, to `until`, and returns them as they are
	// then. It is refused as an Append is. The step is atomic for each of them.
	Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]Head, error)
	// PutPayload stores the payload of a transaction under its sum, 1 to 32 bytes. It may
	// come before the transaction's first record. Repeating it refreshes the time at
	// which it was kept. A payload whose transaction is never created is removed by
	// Forget, by that time.
	PutPayload(ctx context.Context, transaction string, sum, payload []byte) error

	// Read gives the head of a transaction and its records after a position, in
	// order; the zero Head and none if it does not exist.
	Read(ctx context.Context, transaction string, after int64) (Head, []Record, error)
	// Payload gives what was kept, and nil if nothing was.
	Payload(ctx context.Context, transaction string, sum []byte) ([]byte, error)
	// Due lists the unfinished transactions of a shard in the order of their due
	// times, then ids, from behind the given head (the zero Head: from the first),
	// at most limit.
	Due(ctx context.Context, shard int, behind Head, limit int) ([]Head, error)
	// DueShards lists those of the given shards in which an unfinished transaction is due at
	// `by`, in rising order, each once: one request, however many transactions are due,
	// for a hundred shards or more. It leaves none out. It may name one whose
	// transactions were due then and have ended, or are due later, until a Claim by that
	// time has found no more of them.
	DueShards(ctx context.Context, shards []int, by time.Time) ([]int, error)
	// Heads lists transactions of all shards, finished ones too, in the order of
	// their ids from behind the given one, at most limit.
	Heads(ctx context.Context, behind string, limit int) ([]Head, error)

	// Forget removes transactions that ended before a time of the store's clock,
	// whole, at most limit, and payloads kept before that time whose transaction
	// does not exist. It returns how many transactions it removed.
	Forget(ctx context.Context, endedBefore time.Time, limit int) (int, error)
	// Unscheduled counts the unfinished transactions that the due index does not
	// show. Anything but 0 is a defect of the store or of who changed it by hand.
	Unscheduled(ctx context.Context) (int, error)

	// Shards makes the stored number to if it is from, and to is not 0; it returns the
	// number that is stored then. 0 stands for none. The store reads nothing into it.
	Shards(ctx context.Context, from, to int) (int, error)
	// Reassign moves an unfinished transaction to another shard, unless it is not at the
	// head's position or in its shard any more. It checks no epoch.
	Reassign(ctx context.Context, h Head, shard int) error
}

// A ShardsError is the refusal to use a journal that was opened with another number of
// shards than it has: a transaction in a wrong shard would not be driven.
type ShardsError struct {
	Stored int // which the journal has; below zero while it is changed to -Stored; 0 if it has none
	Opened int // with which it is used
}

// Error names both numbers, and what to do.
func (e *ShardsError) Error() string {
	if e.Stored < 0 {
		return fmt.Sprintf("a change of the journal to %d shards was begun and has not ended; complete it by SetShards, or `interlock saga shards --set %d`", -e.Stored, -e.Stored)
	}
	return fmt.Sprintf("the journal has %d shards and was opened with %d; open it with %d, or stop all that use it and change the number by SetShards, or `interlock saga shards --set %d`",
		e.Stored, e.Opened, e.Stored, e.Opened)
}

// ErrorKind is [interlock.Definite].
func (e *ShardsError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ShardName names a shard in errors.
func ShardName(shard int) string { return fmt.Sprintf("journal shard %d", shard) }
