package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

// An Entry is what a record says. Position, Epoch and Written are set where it was
// read, and ignored where it is to be written.
type Entry struct {
	Kind     string          // what happened: 1 to 32 bytes
	Step     string          // of what, at most 255 bytes
	Data     []byte          // at most driver.MaxPayload
	Position int64           // from 1
	Epoch    interlock.Token // of the shard's owner who wrote it; 0 if somebody else did
	Written  time.Time       // by the store's clock
}

// A Log is a transaction as one who drives it knows it: what is appended stands
// right behind what was read, or is refused. It is not safe for concurrent use.
type Log struct {
	journal *Journal
	owner   *Shard // nil for somebody who owns nothing
	head    driver.Head
	shards  int // what the store has to keep for the transaction to begin; 0 is not checked
}

// Head is where the transaction stands, as far as is known here: Began is zero unless
// the log was opened, and Ended of one that was ended here if the store does not say when.
func (l *Log) Head() driver.Head { return l.head }

// Append adds entries, 1 to driver.MaxRecords, durably before it returns, and says
// when the transaction has to be looked at next. It tries for Options.Patience, as
// long as ctx and the claim of the shard's owner last. Its errors:
//
//   - [ErrConflict]: somebody else has appended. Nothing was written, unless the error is
//     Uncertain: then that may stand behind what was;
//   - an [interlock.StaleTokenError], or the cause with which the claim ended: the
//     shard has another owner;
//   - an Uncertain error: it may have been written. Appending the same again
//     converges, with the same Log or after reopening it and looking.
func (l *Log) Append(ctx context.Context, due time.Time, entries ...Entry) error {
	if due.IsZero() {
		return failure.Bug("append", l.head.Transaction, "when it is due is not said; only the end of a transaction has no time")
	}
	return l.append(ctx, due, entries)
}

// End is Append with the last entries of the transaction: nothing follows them, and
// it is not due any more.
func (l *Log) End(ctx context.Context, entries ...Entry) error {
	return l.append(ctx, time.Time{}, entries)
}

func (l *Log) append(ctx context.Context, due time.Time, entries []Entry) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.journal.options.Patience, errPatience)
	defer cancel()
	a, err := l.request(due, entries, func(sum, payload []byte) error {
		return l.journal.try(ctx, func() error { return l.journal.store.PutPayload(ctx, l.head.Transaction, sum, payload) })
	})
	if err != nil {
		return err
	}
	if err := l.journal.persist(ctx, l.owner, &a); err != nil {
		return err
	}
	l.Accept(a)
	return nil
}

// errPatience is the cause with which Options.Patience ends.
var errPatience = fmt.Errorf("the store has not taken it in time: %w", context.DeadlineExceeded)

// Accept takes that the transaction in which [Log.AppendIn] appended has committed.
func (l *Log) Accept(a driver.Append) {
	l.head.Position, l.head.Sum = a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum
	l.head.Due, l.head.Claimed, l.head.Ended = a.Due, false, a.Ended
}

// request makes the records; keep takes what is large, which stands beside them.
func (l *Log) request(due time.Time, entries []Entry, keep func(sum, payload []byte) error) (driver.Append, error) {
	a := driver.Append{Transaction: l.head.Transaction, Shard: l.head.Shard, Type: l.head.Type, After: l.head.Position, Shards: l.shards, Due: due, Was: l.head.Due}
	if l.owner != nil {
		a.Epoch = l.owner.epoch
	}
	if err := driver.CheckTransaction("append", l.head.Transaction); err != nil {
		return a, err
	}
	sum := l.head.Sum
	for _, e := range entries {
		data, err := l.journal.stow(e.Data, keep)
		if err != nil {
			return a, err
		}
		sum = chain(sum, l.head.Transaction, l.head.Type, a.After+int64(len(a.Records))+1, a.Epoch, e.Kind, e.Step, data)
		a.Records = append(a.Records, driver.Record{Kind: e.Kind, Step: e.Step, Data: data, Sum: sum})
	}
	return a, driver.CheckAppend([]driver.Append{a}, 0)
}

// pause is how long to wait before an append is tried again.
var pause = backoff.Policy{First: 10 * time.Millisecond, Max: time.Second}

// persist appends until there is an outcome.
func (j *Journal) persist(ctx context.Context, owner *Shard, a *driver.Append) error {
	alone := false
	return j.try(ctx, func() error {
		if err := owner.holds(); err != nil {
			return err
		}
		err := j.enqueue(ctx, a, alone)
		alone = errors.Is(err, interlock.ErrHeld)
		var elsewhere *driver.PositionError
		if errors.As(err, &elsewhere) {
			return ours(a, elsewhere)
		}
		return err
	})
}

// A doubt is an append that may have been done by a try whose answer was lost, and was
// not tried again.
type doubt struct{ lost, last error }

func (d *doubt) Error() string                  { return fmt.Sprintf("%v; and then: %v", d.lost, d.last) }
func (d *doubt) Unwrap() []error                { return []error{d.lost, d.last} }
func (d *doubt) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// try does what may be repeated until there is an outcome, or ctx ends. What ends the
// tries says nothing of one before whose answer was lost, unless the store has shown
// since that nothing came of it.
func (j *Journal) try(ctx context.Context, once func() error) error {
	var lost error
	for attempt := 1; ; attempt++ {
		err := once()
		kind := interlock.Kind(err)
		var final *absent
		switch {
		case err == nil || errors.As(err, &final):
			return err
		case kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil:
			return doubted(lost, err)
		case kind == interlock.Uncertain:
			lost = err
		}
		timer := time.NewTimer(pause.Delay(attempt, j.random()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return doubted(lost, err)
		case <-timer.C:
		}
	}
}

// doubted is the error that ended the tries, of which an earlier one may have lost its
// answer.
func doubted(lost, last error) error {
	if lost == nil || interlock.Kind(last) == interlock.Uncertain {
		return last
	}
	return &doubt{lost, last}
}

// absent is a refusal by which the records are not there, whatever was lost before.
type absent struct{ error }

func (a *absent) Unwrap() error { return a.error }

// ours is nil if it is these records that stand where the append is refused: an
// earlier try was done, whose answer was lost. If more stand there nobody can tell.
func ours(a *driver.Append, e *driver.PositionError) error {
	last := a.After + int64(len(a.Records))
	if e.Found.Position == last && bytes.Equal(e.Found.Sum, a.Records[len(a.Records)-1].Sum) && e.Found.Ended.IsZero() != a.Due.IsZero() {
		a.Ended = e.Found.Ended
		return nil
	}
	refused := fmt.Errorf("%w: %w", ErrConflict, e)
	if a.After == 0 {
		refused = fmt.Errorf("%w: %w", ErrExists, e)
	}
	if e.Found.Position > last {
		return refused
	}
	return &absent{refused}
}
