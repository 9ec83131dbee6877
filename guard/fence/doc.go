// Package fence rejects work under a stale token, in the store where the work is done. It
// does not prevent two processes from believing that they hold a lock, does not protect
// data that is accessed without it, and cannot undo a commit. Its promise: once a token has
// entered a resource and committed, no lower token enters, to read or to write.
//
// The rule is: enter before you read. [Tx] does it for a SQL transaction:
//
//	marks := fence.Table{}
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), marks, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error {
//				// read, decide, write: a holder that comes later waits for this to end
//				return nil
//			})
//	})
//
// [Table] keeps the marks of any number of resources in a table of their own
// and protects whatever is done in the same transaction, inserts included.
// [Column] keeps the mark in the row that it protects, and protects that row
// only. [Store] guards a key-value store that checks and writes in one step.
//
// # A transaction that stands still
//
// A transaction that has entered keeps the mark's row locked until the transaction ends,
// also if the process is stopped. [Tx] therefore lets the server end a session
// that is idle for two thirds of what remained of the claim: claims are renewed
// each third of their length, so that the transaction of a stopped holder is
// gone by the time that its claim can pass to another. One statement may run,
// and wait for locks, as long as the claim had left. These are settings of the
// transaction, and never longer than those it had. The answer to COMMIT is
// waited for as long as the claim had left, and as long as it lasts.
//
// Two cases take longer. If renewals had been failing for a while before the
// holder was stopped, its session ends after its claim by at most those two
// thirds. If it was stopped while a statement ran, that statement ends first.
// Meanwhile the next holder waits in Enter, at most as long as its own claim
// lasts; nothing stale is ever let in.
//
// # Databases
//
// PostgreSQL and MariaDB are spoken, with the same promises. On MariaDB:
//
//   - the settings are those of the session. A transaction of mysql.DB gives them
//     back with its COMMIT, in one request; any other is refused by [Tx]. Idle time
//     is counted in whole seconds there: rounded down, and at least one;
//   - InnoDB lets a transaction write on top of what its snapshot does not show.
//     Who reads before it enters and is overtaken meanwhile is refused, Retryable,
//     as PostgreSQL does by itself. A [Column] notices that only by the mark: what
//     was written meanwhile under the same token stays unseen;
//   - after a lock that was not to be had in time, MariaDB keeps the rest of the
//     transaction. It can then only be rolled back, as on PostgreSQL.
package fence
