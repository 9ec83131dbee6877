// Package keyed does the work of one key in order, and that of different keys at
// the same time, within one process. It knows nothing of other processes: what
// must hold between them is the affair of a claim and a guard. It keeps nothing
// over a crash: what is queued is lost with the process, so a message is to be
// acknowledged when its task has ended, not when it was taken.
//
// An [Executor] runs functions, one at a time for each key, first come first
// served:
//
//	x, err := keyed.NewExecutor(nil)
//	…
//	defer x.Close(ctx)
//	err = x.Do(ctx, "account/42", func(ctx context.Context) error {
//		return fence.Tx(ctx, db, marks, claim, "account/42", withdraw)
//	})
//
// [Batches] gives one function the tasks of a key several at a time, so that they
// can share one commit. [Stripes] are plain locks, for when a queue is too much.
//
// # Bounds
//
// How many tasks run, how many may be queued for one key and how many for all are
// bounded; what comes beyond is refused with a [*FullError], or waits for room.
// Nothing is kept for a key that has no task, and no goroutine runs while there is
// no work.
//
// # Fairness
//
// Keys that have tasks take turns. A key whose turn it is runs a bounded number of
// tasks, then goes to the end of the line: a cold key's task waits for one turn of
// each key before it, however much a hot key has queued.
//
// # Waiting inside a task
//
// A task that waits for the executor that runs it can wait for ever: for its own
// key, for a key whose task waits for this one, or because all that may run are
// waiting. So a Do inside a task of the same executor is refused with
// [interlock.ErrReentered], whatever the key, rather than now and then; Go inside
// a task never waits for room. Both are noticed by the context that the task was
// given. A task that must wait uses a second executor below the first.
package keyed
