// Package fence rejects work under a stale token, in the store where the work is done. It does
// not protect data that is accessed without it, and cannot undo a commit. Its promise: once a
// token has entered a resource and committed, no lower token enters, to read or to write.
//
// The rule is: enter before you read. [Tx] does it for a SQL transaction:
//
//	marks := fence.Table{}
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), marks, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error {
//				// read, decide, write: a later holder waits for this to end
//				return nil
//			})
//	})
//
// [Table] stores the marks of any number of resources in a table of their own. It protects
// everything in the same transaction, including inserts. [Column] stores the mark in the row
// that it protects, and protects only that row. [Store] guards a key-value store that checks
// and writes in one step.
//
// # An idle transaction
//
// A transaction that has entered keeps the mark's row locked until it ends. So [Tx] makes the
// server end a session that is idle for two thirds of the claim's remaining time: before the
// claim of a paused holder, renewed each third of its TTL, can pass to another. A statement
// may run, and wait for locks, for the claim's remaining time. These bounds are settings of
// the transaction, and never longer than its previous ones. Tx waits for the reply to COMMIT
// for the time that the claim had left, and only while the claim lasts.
//
// Two cases take longer. If renewals had failed for a while before the holder was paused, its
// session ends after its claim, by at most those two thirds. If it was paused while a statement
// ran, that statement ends first. Meanwhile the next holder waits in Enter, at most as long as
// its own claim lasts; no stale token ever enters.
//
// # Databases
//
// The package supports PostgreSQL and MariaDB, with the same promises. On MariaDB:
//
//   - The settings are those of the session. A transaction of mysql.DB resets them with its
//     COMMIT, in one request; [Tx] rejects any other transaction. MariaDB counts idle time in
//     whole seconds: rounded down, and at least one.
//   - InnoDB lets a transaction overwrite rows that its snapshot does not show. If a
//     transaction reads before it enters, and another one commits in between, Enter returns a
//     Retryable error, as PostgreSQL does by itself. A [Column] detects that only by the mark:
//     it does not detect writes under the same token.
//   - After a lock timeout, MariaDB keeps the rest of the transaction. The transaction can then
//     only be rolled back, as on PostgreSQL.
package fence
