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
