package journal

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

var _ TxStore = (*Table[driver.SQL])(nil)

// bounded is a transaction that the server can be asked to end; see driver.Tx.
type bounded interface {
	Bound(ctx context.Context, idle, statement time.Duration) error
}

// lend is the tables as a transaction of the user's uses them.
func (t *Table[T]) lend(op, about string, db driver.SQL) (tables, error) {
	n, err := t.in(op, about, db)
	n.lent = true
	return n, err
}

// AppendIn does one append in a transaction of the user's on the same database: it
// is done if and when that commits. A Retryable error, or a refusal, leaves a
// transaction that should be rolled back. Under the user's REPEATABLE READ a refusal
// may tell of an older state than there is. It waits for a transaction that is appending to
// the same id; what other transactions append to other ids does not wait for this one.
//
// An append under an epoch keeps the next owner of the shard waiting until the transaction
// has ended. If db is a driver.Tx, the server therefore ends it once it has sent nothing for
// 5 seconds; of another one the user has to see to that.
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

// KeepIn keeps a payload in a transaction of the user's; see [TxStore].
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

// FirstIn reads the first record of a transaction in a transaction of the user's; see
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

// PayloadIn reads a payload in a transaction of the user's; see [TxStore].
func (t *Table[T]) PayloadIn(ctx context.Context, db driver.SQL, id string, sum []byte) ([]byte, error) {
	n, err := t.lend("read payload", id, db)
	if err != nil {
		return nil, err
	}
	payload, err := n.payload(ctx, id, sum, n.latest())
	return payload, err
}

// latest ends a query for one row that may be newer than the snapshot of the user's
// transaction. On MariaDB it locks that row and, since its key is given whole, no gap; on
// PostgreSQL such a transaction has failed before.
func (n tables) latest() string {
	if n.lent && n.Maria() {
		return ` lock in share mode`
	}
	return ``
}
