package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// TxStore is the store of a journal in a database, for use in the user's transaction on
// that database: a [*Table]. No method needs another connection.
type TxStore interface {
	// AppendIn does an append, which takes effect when the transaction commits. It has the
	// rejections of the store's Append.
	AppendIn(ctx context.Context, db driver.SQL, a driver.Append) error
	// KeepIn stores a payload if the transaction commits.
	KeepIn(ctx context.Context, db driver.SQL, transaction string, sum, payload []byte) error
	// FirstIn reads a transaction's head and first record, as last committed or as written
	// in this transaction; the zero Head if it does not exist.
	FirstIn(ctx context.Context, db driver.SQL, transaction string) (driver.Head, driver.Record, error)
	// PayloadIn reads a payload, or returns nil.
	PayloadIn(ctx context.Context, db driver.SQL, transaction string, sum []byte) ([]byte, error)
	// ShardsIn reads the stored number of shards, or returns 0.
	ShardsIn(ctx context.Context, db driver.SQL) (int, error)
}

// BeginIn is [Journal.Begin] in the user's transaction on the database of the journal's store. The
// transaction, including large data, begins when that commits. Roll the user's transaction back
// after an error.
func (j *Journal) BeginIn(ctx context.Context, s TxStore, db driver.SQL, id, kind string, due time.Time, entries ...Entry) error {
	l := &Log{journal: j, head: driver.Head{Transaction: id, Shard: j.ShardOf(id), Type: kind}}
	if due.IsZero() {
		return failure.Bug("begin", id, "it has no due time")
	}
	if err := j.checkShardsIn(ctx, s, db); err != nil {
		return err
	}
	if j.shardsChecked.Load() { // otherwise there may be no number yet
		l.shards = j.options.Shards
	}
	_, err := l.AppendIn(ctx, s, db, due, entries...)
	var elsewhere *driver.PositionError
	if errors.As(err, &elsewhere) {
		return fmt.Errorf("%w: %w", ErrExists, elsewhere)
	}
	return err
}

// AppendIn is [Log.Append] in the user's transaction, or [Log.End] if due is zero. It does not
// retry. Call [Log.Accept] once that transaction has committed. If its outcome is unknown, or
// the store has rejected the append, open the log again.
func (l *Log) AppendIn(ctx context.Context, s TxStore, db driver.SQL, due time.Time, entries ...Entry) (driver.Append, error) {
	if err := l.owner.valid(); err != nil {
		return driver.Append{}, err
	}
	type payload struct{ sum, data []byte }
	var large []payload
	a, err := l.request(due, entries, func(sum, data []byte) error {
		large = append(large, payload{sum, data})
		return driver.CheckPayload(l.head.Transaction, sum, data)
	})
	if err == nil {
		err = s.AppendIn(ctx, db, a)
	}
	for _, p := range large {
		if err == nil {
			err = s.KeepIn(ctx, db, a.Transaction, p.sum, p.data)
		}
	}
	return a, err
}

// FirstIn reads the head of a transaction and its first entry in the user's transaction. The
// Head is zero if it does not exist.
func (j *Journal) FirstIn(ctx context.Context, s TxStore, db driver.SQL, id string) (driver.Head, Entry, error) {
	head, r, err := s.FirstIn(ctx, db, id)
	if err != nil || head.Position == 0 {
		return head, Entry{}, err
	}
	e, err := unstow(id, r, func(sum []byte) ([]byte, error) { return s.PayloadIn(ctx, db, id, sum) })
	return head, e, err
}

var _ TxStore = (*Table[driver.SQL])(nil)

// bounded is a transaction with timeouts on the server; see driver.Tx.
type bounded interface {
	Bound(ctx context.Context, idle, statement time.Duration) error
}

// lend returns the tables in the user's transaction.
func (t *Table[T]) lend(op, about string, db driver.SQL) (tables, error) {
	n, err := t.in(op, about, db)
	n.lent = true
	return n, err
}

// AppendIn does one append in the user's transaction on the same database: it takes
// effect when that commits. Roll the transaction back after a Retryable error or a
// refusal. Under the user's REPEATABLE READ a refusal may show an outdated state.
// AppendIn waits for a transaction that is appending to the same id. Appends of other
// transactions to other ids do not wait for this one.
//
// An append under an epoch blocks the next owner of the shard until the transaction has
// ended. If db is a driver.Tx, the server therefore ends it if it sends nothing for 5
// seconds. For any other db, the user must bound it.
func (t *Table[T]) AppendIn(ctx context.Context, db driver.SQL, a driver.Append) error {
	n, err := t.lend("append", a.Transaction, db)
	if err != nil {
		return err
	}
	errs := []error{driver.CheckAppend([]driver.Append{a}, 0)}
	if tx, ok := db.(bounded); ok && a.Epoch != 0 { // the next owner of the shard waits for it
		if err := tx.Bound(ctx, t.idle, 0); err != nil {
			return failure.Table("append", a.Transaction, "journal", err)
		}
	}
	if err := n.append(ctx, []driver.Append{a}, errs); err != nil {
		return err
	}
	return errs[0]
}

// KeepIn stores a payload in the user's transaction; see [TxStore].
func (t *Table[T]) KeepIn(ctx context.Context, db driver.SQL, id string, sum, payload []byte) error {
	n, err := t.lend("keep payload", id, db)
	if err == nil {
		err = driver.CheckPayload(id, sum, payload)
	}
	if err == nil {
		err = n.keep(ctx, id, sum, payload)
	}
	return err
}

// FirstIn reads the first record of a transaction in the user's transaction; see
// [TxStore].
func (t *Table[T]) FirstIn(ctx context.Context, db driver.SQL, id string) (head driver.Head, r driver.Record, err error) {
	const op = "read journal"
	n, err := t.lend(op, id, db)
	if err == nil {
		err = driver.CheckTransaction(op, id)
	}
	if err != nil {
		return head, r, err
	}
	head, records, err := n.read(ctx, ` and r.position = 1`, n.latest(), id)
	if err != nil || len(records) == 0 {
		return head, r, err
	}
	return head, records[0], nil
}

// PayloadIn reads a payload in the user's transaction; see [TxStore].
func (t *Table[T]) PayloadIn(ctx context.Context, db driver.SQL, id string, sum []byte) ([]byte, error) {
	n, err := t.lend("read payload", id, db)
	if err != nil {
		return nil, err
	}
	payload, err := n.payload(ctx, id, sum, n.latest())
	return payload, err
}

// latest returns the end of a query for one row that may be newer than the snapshot of the
// user's transaction. On MariaDB it locks the row, and no gap, since the query gives the
// whole key. On PostgreSQL such a transaction has failed before.
func (n tables) latest() string {
	if n.lent && n.Maria() {
		return ` lock in share mode`
	}
	return ``
}
