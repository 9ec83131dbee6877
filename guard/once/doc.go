// Package once keeps a message that is delivered again from having its effect
// again. It does not make a delivery happen, does not order messages that have no
// sequence number, forgets after [Inbox].Retention, and cannot take back what was
// done outside the transaction: a mail that was sent is sent. What it gives: of
// all transactions that record one message for one consumer, one commits, and its
// effect with it.
//
//	inbox := once.Inbox{Consumer: "billing"}
//	outcome, err := once.Tx(ctx, postgres.Pool(pool), inbox, once.Message{ID: m.ID, Payload: m.Body},
//		func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42`)
//			return err // and messages that follow from it: into flow/outbox, by the same tx
//		})
//	switch {
//	case err == nil: // done, or a duplicate: acknowledge
//	case outcome == once.Mismatched: // a dead letter
//	default: // let it be delivered again, also after a Definite error: at a shutdown that is one
//	}
//
// [Tx] and [BatchTx] own the transaction and are the forms to use. [Inbox.Once]
// and [Inbox.Batch] work in one that the caller began; there a record cannot be
// committed without its effect either: if the effect fails, they spoil the
// transaction, so that it can only be rolled back. [BestEffort] serves effects outside
// of any store that keeps records, and promises less. For effects on data in Redis,
// redis.Inbox has record and effect in one script.
//
// # Duplicates at the same time
//
// The record is written before the effect. A duplicate that comes meanwhile waits
// for the first transaction to end, then gets [Duplicate], or runs if the first
// was rolled back. How long it waits is the database's affair: give sessions that
// idle inside a transaction a bound (idle_in_transaction_session_timeout,
// idle_transaction_timeout). With [Inbox].Optimistic the record is written after
// the effect: both run, one commits, and the other gets a Retryable error.
//
// A duplicate that is acknowledged relies on the first one's commit, and so on the
// database keeping what it has committed: with synchronous_commit off, or
// innodb_flush_log_at_trx_commit other than 1, a crash of the server can take back
// an effect whose duplicates are gone.
//
// # Isolation
//
// The unique index decides, and not what the transaction sees. On PostgreSQL, at
// READ COMMITTED, a duplicate of what was committed after its transaction began is
// a [Duplicate]; at REPEATABLE READ and SERIALIZABLE it is a Retryable error, since
// the transaction could not read what the first one did. On MariaDB it is a
// Duplicate at every level (with innodb_snapshot_isolation on, a Retryable error
// again), but the effect of a message that is new may read a
// snapshot taken before: let the record be the first thing that a transaction does.
//
// # Cleaning
//
// Records must outlive every redelivery: the broker's retention, and the time that
// a dead letter may wait to be replayed. [Inbox.Clean] deletes older ones in
// bounded batches, by the database's clock. With [Inbox].Rotated, on PostgreSQL,
// whole generations are dropped by [Inbox.Rotate]. A producer that numbers its
// messages for each key needs neither: one row a key remembers them all, see
// [Message].
package once
