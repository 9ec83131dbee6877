// Package keyed runs tasks in order per key and concurrently across keys, within one process. It
// does not coordinate with other processes: use a claim and a guard for that. It stores nothing:
// queued tasks are lost with the process, so acknowledge a message when its task has ended, not
// when it was accepted.
//
// An [Executor] runs functions one at a time per key, first come, first served:
//
//	x, err := keyed.NewExecutor(nil)
//	…
//	defer x.Close(ctx)
//	err = x.Do(ctx, "account/42", func(ctx context.Context) error {
//		return fence.Tx(ctx, db, marks, claim, "account/42", withdraw)
//	})
//
// [Batches] passes several tasks of a key to one function, so that they can share a commit.
// [Stripes] are striped mutexes, for cases that need no queue.
//
// # Bounds
//
// The numbers of running tasks, of queued tasks per key and of queued tasks in total are bounded.
// Tasks beyond a bound are rejected with a [*FullError], or wait for room. A key without tasks
// uses no memory, and no goroutine runs while there is no work.
//
// # Fairness
//
// Keys with tasks take turns. In its turn a key runs a bounded number of tasks and then goes to
// the end of the line.
//
// # Waiting inside a task
//
// A task that waits for its own executor can wait for ever: for its own key, for a key whose task
// waits for this one, or because all running tasks are waiting. So a Do inside a task of the same
// executor is always rejected with interlock.ErrReentered, and Go inside a task never waits for
// room. Both detect this by the context that the task received. A task that must wait uses a
// second executor below the first.
package keyed
