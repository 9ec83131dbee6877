// Package countermeasure keeps sagas out of each other's way, each type against one
// way in which they are not isolated. It does not isolate sagas: what a step has
// committed others can see and use until it is undone, and code that does not use these
// types is not kept from anything. None of them makes a call happen once, and
// none ends a saga: the steps that use them stand behind txn/barrier, but for
// [VersionFile] and [Sum.Apply], which are barriers of their own.
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
// The names are those of Frank and Zahle, "Semantic ACID Properties in Multidatabases
// Using Remote Procedure Calls and Update Propagations", 1998.
//
//   - [SemanticLock]: a record is flagged while a saga is at work on it, over all of
//     its transactions. Against dirty reads, lost updates and fuzzy reads; others
//     fail, wait, or take over what an ended saga left.
//   - [Sum], the commutative update: a number changes by differences only, within
//     bounds. Against lost updates, without anybody waiting for a saga.
//   - [Staging] and [CheckOrder], the pessimistic view: readers see nothing of a saga
//     until it publishes; and steps that raise what others rely on come last.
//     Against dirty reads.
//   - [Reread], the reread value: a row is overwritten only if it is still as it was
//     when the saga read it. Against lost updates and fuzzy reads.
//   - [VersionFile]: the operations on a record, each once, and none that comes
//     after its own cancellation.
//   - [ByValue]: what is worth much uses two-phase commit or TCC, the rest by saga.
//
// docs/explanation/countermeasures.md has the lines of each, what they cost, and when not to take them.
//
// # MariaDB
//
// InnoDB shows a transaction at REPEATABLE READ what was committed before its first
// read, and lets it write over the rest. [SemanticLock] therefore refuses, Retryable,
// a transaction that had read before the flag's last change: acquire before you read.
// The other types look at what was committed last, whatever the transaction has read.
package countermeasure
