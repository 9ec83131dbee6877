package once

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// batchSize is the number of messages that one statement records.
const batchSize = 500

// Batch is [Inbox.Once] for many messages: it records those that are new, then runs fn once
// with them, in the order of messages. One statement records up to 500 messages; on PostgreSQL
// one more reads the duplicates among them. If none is new, fn does not run.
//
// It returns the outcome of each message. A [Mismatched] message does not affect the others. If
// a message occurs twice in a batch, the second one is a [Duplicate]. Any error is one of all
// messages, and the outcomes are then nil. After any error that is not a Bug the transaction
// must be rolled back.
//
// Batch writes records in the order of their ids, so two batches do not deadlock. Messages with
// a sequence number are a Bug here.
func (in Inbox) Batch(ctx context.Context, db driver.SQL, messages []Message, fn func(ctx context.Context, fresh []Message) error) ([]Outcome, error) {
	var outcomes []Outcome
	err := transact.Whole(ctx, db, halfDone, func(begin func()) (err error) {
		outcomes, err = in.batch(ctx, db, messages, begin, fn)
		return err
	})
	return outcomes, err
}

// batch runs Batch, and leaves the transaction to its caller. It calls begin before it
// records: when it fails, a part of a large batch may be recorded.
func (in Inbox) batch(ctx context.Context, db driver.SQL, messages []Message, begin func(),
	fn func(ctx context.Context, fresh []Message) error) ([]Outcome, error) {
	t, err := in.admitAll(db, messages, fn != nil)
	if err != nil {
		return nil, err
	}
	begin()
	found, err := t.recordAll(ctx, messages)
	if err != nil {
		return nil, err
	}
	outcomes, fresh, err := in.sort(messages, found)
	if err == nil && len(fresh) > 0 {
		err = fn(ctx, fresh)
	}
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

func (in Inbox) admitAll(db driver.SQL, messages []Message, effect bool) (tables, error) {
	const op = "receive batch"
	if !effect {
		return tables{}, failure.Bug(op, in.Consumer, "a function for the effect is required")
	}
	for _, m := range messages {
		if m.Seq > 0 {
			return tables{}, failure.Bug(op, m.name(), "it has a sequence number: use Once")
		}
		if err := m.check(); err != nil {
			return tables{}, err
		}
	}
	return in.open(op, in.Consumer, db)
}

// recordAll records each id once, with the hash of its first message.
func (t tables) recordAll(ctx context.Context, messages []Message) (map[string]finding, error) {
	entries := make([]entry, len(messages))
	for i, m := range messages {
		entries[i] = entry{m.ID, m.hash()}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.id == b.id })
	all := make(map[string]finding, len(entries))
	for chunk := range slices.Chunk(entries, batchSize) {
		found, err := t.record(ctx, chunk)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// sort separates new messages from the others.
func (in Inbox) sort(messages []Message, found map[string]finding) (outcomes []Outcome, fresh []Message, err error) {
	outcomes = make([]Outcome, len(messages))
	for i, m := range messages {
		if f := found[m.ID]; f.fresh {
			found[m.ID] = finding{false, f.hash} // the next one of this ID is not
			fresh = append(fresh, m)
			outcomes[i] = Done
			continue
		}
		outcome, err := in.classify(m, found)
		if outcome == Undone {
			return nil, nil, err
		}
		outcomes[i] = outcome
		report(in.Hooks, in.Consumer, m, outcome, nil)
	}
	return outcomes, fresh, nil
}

// Tx records m in a new transaction, runs fn there if m is new, and commits both. fn must not
// end the transaction. It must return the errors of its statements: on MariaDB, statements
// after a deadlock or a CREATE are outside of the transaction. If m is [Done] or a [Duplicate],
// Tx returns no error: acknowledge m. Otherwise the outcome is [Undone] or [Mismatched], and
// the error is:
//
//   - a [MismatchError] or a [GapError]: nothing was done
//   - a Retryable error, such as a serialization failure or a deadlock: nothing was committed,
//     and the message may be delivered again. Tx does not retry
//   - an Uncertain error: COMMIT was sent and no reply came, or fn ended the transaction. Let
//     the message be delivered again: if it was committed, it is then a duplicate, otherwise it
//     runs
//   - an error of fn, unchanged, after a rollback. If it came from the database and has no
//     kind, Tx adds one
//   - any other error, after which nothing was committed. It is Definite if ctx ended, or if
//     the database refused: the message is not the cause
//
// A rollback ignores the cancellation of ctx and has its own bound. Tx also rolls back if fn
// panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, m Message, fn func(ctx context.Context, tx T) error) (Outcome, error) {
	if fn == nil {
		return Undone, failure.Bug("receive", m.name(), "a function for the effect is required")
	}
	var outcome Outcome
	err := inTx(ctx, db, m.name(), func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		outcome, err = in.once(ctx, tx, m, func(ctx context.Context) error { return tx.Classify(fn(ctx, tx.Native())) })
		return outcome == Done, err
	})
	if err != nil && outcome == Done {
		outcome = Undone
	}
	return outcome, err
}

// BatchTx is [Tx] for many messages: it records them as [Inbox.Batch] does, runs fn once with
// those that are new, and commits. If there is an error, the outcomes are nil. [Mismatched]
// messages are not an error.
func BatchTx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, messages []Message,
	fn func(ctx context.Context, tx T, fresh []Message) error) ([]Outcome, error) {
	if fn == nil {
		return nil, failure.Bug("receive batch", in.Consumer, "a function for the effect is required")
	}
	var outcomes []Outcome
	err := inTx(ctx, db, in.Consumer, func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		outcomes, err = in.batch(ctx, tx, messages, func() {}, func(ctx context.Context, fresh []Message) error {
			return tx.Classify(fn(ctx, tx.Native(), fresh))
		})
		return slices.Contains(outcomes, Done), err
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// inTx runs work in a transaction, and commits unless that is useless. A result that was read
// without writing is true however the transaction ends.
func inTx[T any](ctx context.Context, db driver.Beginner[T], name string,
	work func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error)) error {
	if db == nil {
		return failure.Bug("begin", name, "a database is required")
	}
	return transact.Do(ctx, db.Begin, name, func(tx driver.Tx[T]) error {
		worth, err := work(ctx, tx)
		if err == nil && !worth {
			return transact.ErrNothing
		}
		return err
	})
}
