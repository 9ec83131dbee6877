// Package barrier lets a participant of distributed transactions answer each call as
// it answered the first one, and no call behind the one that undid it. It does not
// make calls arrive, takes back nothing that a function did outside of its
// transaction, and relies on the database to keep what it has committed. What it
// gives: of all calls of one branch, one has the effect, in the transaction that
// remembers it; and a branch that was undone stays so, whatever is still on its way.
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
// Which call it is stands in the context: [branch.From]. A coordinator in the same
// process has put it there, or branchhttp.Handler; elsewhere [branch.With] does it.
//
// # Forms
//
// [Do], [Confirm] and [Undo] own the transaction and are the forms to use; a
// [Participant] is the three of them behind one function, for branchhttp.Handler.
// [DoIn], [ConfirmIn] and [UndoIn] work in a transaction that the caller began.
// [DoOutside], [ConfirmOutside] and [UndoOutside] are for effects that are not in the
// database: they commit that a call is about to be made before they make it, so that
// it is known to be in doubt if the process dies. A [Keyed] is a participant whose data
// is in Redis.
//
// # What is answered
//
// A branch has one row, whose state and the operation asked for decide. do, try and
// prepare mean the same here; so do confirm and commit; so do undo, cancel and
// rollback.
//
//   - do: the first one runs. A repeated one gets the stored output, or the stored
//     refusal, and runs nothing. With another input it is a [MismatchError]. Behind
//     an undo it is refused with [ErrCancelled];
//   - undo: runs if the branch was done, or may have been. Of a branch that was never
//     done or was refused it runs nothing, and keeps a do that comes late from
//     running. A repeated one does nothing;
//   - confirm: runs if the branch was done, once. Of a branch that was not, or was
//     undone, it is a [ViolationError], and so is the undo of a branch that was
//     confirmed: somebody has decided twice.
//
// A call that comes while another of its branch is at work waits for the row, and
// then finds what that one left. Outside of the database it gets
// branch.InProgress.
//
// The epoch of a call is not compared: what keeps a former coordinator from doing
// harm is the row, which answers it as anybody else.
//
// # Forgetting
//
// Nothing is forgotten by age. Rows go when the coordinator says that all
// transactions that began before some time have ended: see [Forget]. A call that tells
// a begin before that time is refused with [ErrForgotten]. When a transaction began is
// compared with nothing else: calls of one branch may differ about it.
//
// # Databases
//
// PostgreSQL and MariaDB are spoken, at any level of isolation. A call locks its row
// by the statement that writes it, and nothing by a look before. On MariaDB calls of
// one branch that meet while the first of them is rolled back may be a deadlock: the
// functions that own the transaction run it again, elsewhere the error is Retryable.
// A function there must return the errors of its statements: what comes after a
// deadlock, or after a CREATE, is in no transaction.
package barrier
