// Package barrier makes a participant of distributed transactions idempotent: a repeated call
// gets the answer of the first, and a call that arrives after its undo is rejected.
//
// Not promised: that calls arrive; that effects outside of the database are rolled back; anything
// about commits that the database loses.
//
// Promised: of all calls of one branch, one has an effect, in the transaction that records it. A
// branch that was undone stays undone, whatever arrives later.
//
//	var seats barrier.Table
//
//	func hold(ctx context.Context, want Seat) (Hold, error) {
//		return barrier.Do(ctx, postgres.Pool(pool), seats, want,
//			func(ctx context.Context, tx pgx.Tx) (Hold, error) {
//				h, err := reserve(ctx, tx, want)
//				if errors.Is(err, errNoSeat) {
//					return h, branch.Fail(err) // rolled back, and remembered
//				}
//				return h, err
//			})
//	}
//
// The call is taken from the context: [branch.From]. A coordinator in the same process sets it,
// or branchhttp.Handler; elsewhere use [branch.With].
//
// # Forms
//
// [Do], [Confirm] and [Undo] own the transaction; use them by default. A [Participant] combines
// the three in one function, for branchhttp.Handler. [DoIn], [ConfirmIn] and [UndoIn] work in a
// transaction that the caller began. [DoOutside], [ConfirmOutside] and [UndoOutside] are for
// effects outside of the database. Before a call they commit that it begins, so that it is in
// doubt if the process dies. A [Keyed] is a participant with its data in Redis.
//
// # Answers
//
// A branch has one row. Its state and the requested operation decide the answer. do, try and
// prepare are equivalent, and so are confirm and commit, and undo, cancel and rollback.
//
//   - do: the first one runs. A repeated one gets the stored output or refusal and runs
//     nothing; with another input it is a [MismatchError]. After an undo it is rejected with
//     [ErrCancelled].
//   - undo: runs if the branch was done, or may have been. If the branch was never done or was
//     refused, nothing runs, and a later do is rejected. A repeated one does nothing.
//   - confirm: runs once if the branch was done. If it was not, or was undone, it is a
//     [ViolationError]. So is the undo of a confirmed branch: there were two decisions.
//
// A call waits for the row while another call of its branch is running. With effects outside of
// the database it gets branch.InProgress instead.
//
// The epoch of a call is not compared: the row answers a former coordinator like any other.
//
// # Deletion
//
// No row is deleted by age. Rows are deleted when the coordinator reports that all transactions
// that began before some time have ended: see [Forget]. A call of a transaction that began
// before that time is rejected with [ErrForgotten].
//
// # Databases
//
// PostgreSQL and MariaDB, at any isolation level. On MariaDB, calls of one branch that meet
// while the first one rolls back may deadlock. The functions that own the transaction run it
// again; otherwise the error is Retryable. A function must return the errors of its statements:
// after a deadlock or a CREATE, MariaDB executes further statements outside of the transaction.
package barrier
