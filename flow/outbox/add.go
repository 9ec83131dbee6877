package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Bounds of one statement.
const (
	addRows  = 1000
	addBytes = 4 << 20
)

// Add adds messages in the user's transaction: they are sent if it commits, and only then. A message
// without an ID gets a random one. Up to 1000 messages of 4 MiB in total take one statement (on
// MariaDB two, if there are keys); more messages take one more statement for each such number.
//
// Messages of one topic and key are in the order in which their transactions commit. For that Add
// locks the topic and key until the transaction ends, and waits for other transactions that added to
// it. One call takes its locks in a fixed order; several calls can deadlock, and the database then
// ends a transaction (Retryable). A lock timeout is Retryable too. Each key uses an entry of
// PostgreSQL's lock table.
//
// An invalid message is a [*MessageError], and nothing is sent to the database. An id of a message
// that is not delivered yet is a [*DuplicateError]. After that, and after any error of the database,
// the transaction must be rolled back.
func (t Table) Add(ctx context.Context, db driver.SQL, messages ...Message) error {
	return t.AddAt(ctx, db, time.Time{}, messages...)
}

// AddAt is [Table.Add] for messages that are not sent before a time, by the clock of the database.
// Later messages of their keys wait for them. A time before 1970 or after 9999 is a
// [*MessageError]; the zero time means now.
func (t Table) AddAt(ctx context.Context, db driver.SQL, notBefore time.Time, messages ...Message) error {
	const op = "add to outbox"
	s, err := t.open(op, db)
	if err != nil || len(messages) == 0 {
		return err
	}
	due := int64(0) // now
	if !notBefore.IsZero() {
		if notBefore.Unix() < 0 || notBefore.Year() > 9999 {
			return &MessageError{ID: messages[0].ID, Why: "invalid time " + notBefore.String()}
		}
		due = notBefore.UnixMicro()
	}
	all := make([]prepared, len(messages))
	var lanes []int64
	for i, m := range messages {
		if all[i], err = prepare(i, m); err != nil {
			return err
		}
		if m.Key != "" {
			lanes = append(lanes, all[i].lane)
		}
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	insert := s.insertPostgres
	if s.Maria() {
		insert = s.insertMaria
	}
	for len(all) > 0 {
		n, size := 0, 0
		for n < min(len(all), addRows) && (n == 0 || size+all[n].size() <= addBytes) {
			size += all[n].size()
			n++
		}
		// The first insert takes all locks, so that they are in one order.
		if err := insert(ctx, add{all[:n], lanes, due}); err != nil {
			return s.failed(err)
		}
		all, lanes = all[n:], nil
	}
	return nil
}

// add is one insert: it locks the lanes in order, then assigns ids and stores the messages.
type add struct {
	messages  []prepared
	lanes     []int64 // sorted
	notBefore int64   // microseconds since 1970, 0 means now
}

// Tx runs fn in a transaction of db and commits it if fn returns nil. Then it notifies, so that a
// listening relay looks for messages at once. notifier may be nil. Tx returns the error of fn after a
// rollback, with a kind if it is an error of the database. The error of a commit that may have been
// done is Uncertain. Tx does not retry. A rollback ignores the end of ctx, and is done even if fn
// panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	return transact.Notify(ctx, db, notifier, fn)
}

// untyped begins transactions of any type as SQL.
type untyped[T any] struct{ db driver.Beginner[T] }

// Begin begins a transaction, of READ COMMITTED if db can choose a level. Reads must not wait for
// writers, as they do on a MariaDB whose sessions are SERIALIZABLE.
func (b untyped[T]) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := transact.Preferably(b.db, driver.ReadCommitted)(ctx)
	if err != nil {
		return nil, err
	}
	return untypedTx[T]{tx}, nil
}

type untypedTx[T any] struct{ driver.Tx[T] }

func (t untypedTx[T]) Native() driver.SQL { return t.Tx }
