package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// TxStore is a store of a journal in a database, as a transaction of the user's on that
// database uses it: a [*Table]. No method needs another connection.
type TxStore interface {
	// AppendIn does the append if and when the transaction commits. It refuses as the
	// store's own Append does.
	AppendIn(ctx context.Context, db driver.SQL, a driver.Append) error
	// KeepIn keeps a payload if and when the transaction commits.
	KeepIn(ctx context.Context, db driver.SQL, transaction string, sum, payload []byte) error
	// FirstIn reads a transaction's head and first record as they were committed last, or
	// written in this transaction; the zero Head if it does not exist.
	FirstIn(ctx context.Context, db driver.SQL, transaction string) (driver.Head, driver.Record, error)
	// PayloadIn reads a payload, and nil if there is none.
	PayloadIn(ctx context.Context, db driver.SQL, transaction string, sum []byte) ([]byte, error)
	// ShardsIn reads the number of shards that is stored, and 0 if none is.
	ShardsIn(ctx context.Context, db driver.SQL) (int, error)
}

// BeginIn is [Journal.Begin] in a transaction of the user's on the database of the journal's
// store. The transaction begins if and when that commits. Large data is part of it, too. Roll the
// user's transaction back after an error.
func (j *Journal) BeginIn(ctx context.Context, s TxStore, db driver.SQL, id, kind string, due time.Time, entries ...Entry) error {
	l := &Log{journal: j, head: driver.Head{Transaction: id, Shard: j.ShardOf(id), Type: kind}}
	if due.IsZero() {
		return failure.Bug("begin", id, "when it is due is not said")
	}
	if err := j.checkShardsIn(ctx, s, db); err != nil {
		return err
	}
	if j.shardsChecked.Load() { // else there may be no number yet
		l.shards = j.options.Shards
	}
	_, err := l.AppendIn(ctx, s, db, due, entries...)
	var elsewhere *driver.PositionError
	if errors.As(err, &elsewhere) {
		return fmt.Errorf("%w: %w", ErrExists, elsewhere)
	}
	return err
}

// AppendIn is [Log.Append] in a transaction of the user's, or [Log.End] if due is zero. It
// retries nothing. Call [Log.Accept] once that transaction has committed. If its outcome is
// unknown, or the store has rejected the append, open the log again.
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

// FirstIn reads the head of a transaction and its first entry in a transaction of the user's. The
// Head is zero if it does not exist.
func (j *Journal) FirstIn(ctx context.Context, s TxStore, db driver.SQL, id string) (driver.Head, Entry, error) {
	head, r, err := s.FirstIn(ctx, db, id)
	if err != nil || head.Position == 0 {
		return head, Entry{}, err
	}
	e, err := unstow(id, r, func(sum []byte) ([]byte, error) { return s.PayloadIn(ctx, db, id, sum) })
	return head, e, err
}
