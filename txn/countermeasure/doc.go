// Package countermeasure has remedies for the missing isolation of sagas, one type for each
// anomaly. It does not isolate sagas: committed effects of a step are visible until they are
// undone, and code that does not use these types is not restricted. Steps need txn/barrier
// too, except for [VersionFile] and [Sum.Apply], which deduplicate by themselves.
//
// All work in the step's own SQL transaction, on PostgreSQL and MariaDB:
//
//	var orders countermeasure.SemanticLock // its table was made by Create
//
//	func approve(ctx context.Context, tx pgx.Tx, order string) error {
//		c := branch.From(ctx)
//		err := orders.Acquire(ctx, postgres.Tx(tx), countermeasure.Intent{
//			Resource: "order/" + order, Owner: c.Transaction, Purpose: "approval", TTL: time.Hour})
//		if errors.Is(err, interlock.ErrHeld) {
//			return branch.Retry(err) // another saga works on it: roll back, and come again
//		}
//		… // read, then write; the last step, and the undo, call Release
//	}
//
// # Which one
//
// The names are those of Frank and Zahle, "Semantic ACID Properties in Multidatabases Using
// Remote Procedure Calls and Update Propagations", 1998.
//
//   - [SemanticLock]: flags a record while a saga is working on it. Against dirty reads, lost
//     updates and fuzzy reads.
//   - [Sum], the commutative update: a number changes by differences only, within bounds.
//     Against lost updates, without waiting for sagas.
//   - [Staging] and [CheckOrder], the pessimistic view: readers see nothing of a saga before
//     it publishes. Against dirty reads.
//   - [Reread], the reread value: a row is overwritten only if it has not changed since the
//     saga read it. Against lost updates and fuzzy reads.
//   - [VersionFile]: applies each operation on a record once, and none after its own
//     cancellation.
//   - [ByValue]: transactions of high value use two-phase commit or TCC, the others a saga.
//
// docs/explanation/countermeasures.md shows the code of each, its costs, and when not to use it.
//
// # MariaDB
//
// At REPEATABLE READ, InnoDB shows a transaction the data that was committed before its first
// read, and lets it overwrite newer data. SemanticLock therefore rejects, as Retryable, a
// transaction that has read before the flag's last change: acquire before you read. The other
// types read the latest committed data, whatever the transaction has read.
package countermeasure
