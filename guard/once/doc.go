// Package once deduplicates messages: a message that is delivered again does not have its
// effect again. It does not order messages without a sequence number, forgets after
// [Inbox].Retention, and cannot undo effects outside the transaction, such as a sent mail. Its
// promise: of all transactions that record one message for one consumer, one commits, and its
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
// Use [Tx] and [BatchTx], which own the transaction, if possible. [Inbox.Once] and
// [Inbox.Batch] work in a transaction of the caller. If the effect fails, they make the
// transaction fail, so that it can only be rolled back. [BestEffort] is for effects outside of
// any store that keeps records, and promises less. For effects on data in Redis, redis.Inbox
// puts record and effect into one script.
//
// # Concurrent duplicates
//
// The record is written before the effect. A concurrent duplicate waits for the first
// transaction to end. It then returns [Duplicate], or runs if the first was rolled back. The
// database decides how long it waits, so bound sessions that are idle in a transaction
// (idle_in_transaction_session_timeout, idle_transaction_timeout). With [Inbox].Optimistic the
// record is written after the effect: both run, one commits, and the other returns a Retryable
// error.
//
// An acknowledged duplicate relies on the first commit, and so on the durability of the
// database. With synchronous_commit off, or innodb_flush_log_at_trx_commit 0 or 2, a
// crash of the server can lose an effect whose duplicates are already acknowledged.
//
// # Isolation
//
// The unique index decides, not the snapshot of the transaction. On PostgreSQL, consider a
// duplicate of a message that was committed after its own transaction began. At READ COMMITTED
// it is a [Duplicate]. At REPEATABLE READ and SERIALIZABLE it is a Retryable error, because the
// transaction cannot read the first one's effects. On MariaDB it is a Duplicate at every level
// (with innodb_snapshot_isolation on, a Retryable error). But there the effect of a new message
// may read an older snapshot, so make the record the first statement of the transaction.
//
// # Cleaning
//
// Records must outlive every redelivery: the broker's retention, and the time for which a dead
// letter may wait before it is replayed. [Inbox.Clean] deletes older ones in bounded batches,
// by the database's clock. With [Inbox].Rotated, on PostgreSQL, [Inbox.Rotate] drops whole
// generations. A producer that numbers its messages per key needs neither: one row per key is
// enough, see [Message].
package once
