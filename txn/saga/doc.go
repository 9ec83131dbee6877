// Package saga runs a sequence of steps to completion, or compensates those that ran.
//
// Not promised:
//
//   - Isolation. Other processes see the effects of a step before its saga has ended;
//     txn/countermeasure has the usual remedies.
//   - Exactly-once calls. A step is called at least once, always with the same key. The target
//     must recognize a repeated key; txn/barrier does that.
//   - Automatic repair of everything. If an undo fails for good, the saga becomes a dead letter
//     and waits for an operator.
//
// Promised: once Start has returned, the saga has one of these ends. Every step is done, or every
// step that was or may have been done is undone, or the saga is reported as a dead letter. This
// holds across any number of crashes.
//
//	hold := saga.Step("hold", holdSeat).Undo("release", releaseSeat)
//	pay := saga.Step("pay", func(ctx context.Context, o Order) (Receipt, error) {
//		seat, err := hold.Output(ctx) // of an earlier step
//		…
//		return bank.Charge(ctx, saga.From(ctx).Key(), seat.Price) // the bank refuses a second charge under a key
//	}).Pivot()
//	book := saga.Define("book", hold, pay, saga.Step("mail", mail))
//
//	rt, err := txn.Open(ctx, "postgres://127.0.0.1/shop", nil)
//	engine, err := saga.New(rt.Coordinator(), nil, book)
//	err = rt.Start(ctx)
//	outcome, err := book.Do(ctx, engine, "booking/42", order)
//
// # Order
//
// A saga is a list of stages. A stage is a step, a Parallel group of steps, a Sleep, or a Signal,
// which waits for an operator or another system. The list is fixed ([Define]), computed from the
// input ([DefineList]), or requested by a function while it runs ([DefineFunc]); steps of a
// function have inputs of their own.
//
// The saga decides once whether to commit or to abort. The pivot is the point of no return: once
// that step is done, the saga can only commit. Undos run stage by stage in reverse; undos of one
// stage run concurrently. An undo that fails for good does not stop the others.
//
// # Cost
//
// A record must be durable before a step is called that may have to be undone, and before the
// pivot. The result of a step is written with the next record that must be durable, or before
// the next call if it is 250 ms old. If the process dies before that, the next owner repeats the
// call under the same key.
//
// So a saga costs two appends to the journal, whatever its number of steps: one more if the
// pivot is not the first step, one more if it is aborted, and two for each wait. The stages of a
// function are not known in advance: each is one append.
//
// [Definition.StartTx] begins a saga in a transaction of the user's database. [StepTx] is a step
// that commits there together with its record, exactly once.
//
// # Failures
//
//   - [Fail]: the call had no effect. The saga is aborted.
//   - [Retry]: the call had no effect. It is repeated.
//   - any other error: the outcome is unknown. The call is repeated; after the last attempt the
//     step is undone.
//
// A Fail after a call that may have had an effect proves nothing, also if that call was before a
// crash. Such a step is undone, and its undo gets a nil output. After a crash this applies to all
// steps before the pivot, called or not. The pivot is repeated until its outcome is known.
//
// So a target must:
//
//   - give every call of one key the answer of the first
//   - accept the undo of a call that it never received
//   - reject a call that arrives after its undo
//
// An unfinished saga never expires; a dead letter counts as unfinished. An [Operator] retries or
// skips its undos, or closes it. An Operator also aborts a saga, skips an impossible step after
// the pivot, and records the outcome of a pivot that does not answer.
//
// A step that crashes its process also crashes the next owner. After TakeOvers of the
// coordinator's Options (10 by default) without an answer, the saga is halted: a dead letter
// until an operator acts.
//
// # Versions
//
// If the steps of a definition change, give it another [Definition.Version]. A saga keeps the
// version that it began with, so a deployment passes the old versions to its engine until their
// sagas have ended. An owner without the definition of a saga leaves it to the next owner of the
// shard, and reports it: see Foreign of coordinator.Coordinator and observe.Coordinator.
//
// # Owners
//
// Each shard of the journal is driven by the holder of its claim. A former owner that resumes
// after a pause can append nothing, because the journal compares the owner's epoch. A call that
// it had begun may still arrive beside the new owner's, under the same key.
//
// # Limits
//
// The journal has the last error of a failing step and its number of failures. Both are written
// after the first, second, fourth, eighth … failure, and once an hour. Deadlines are wall-clock
// times of the process that started the saga, compared with the clock of the process that drives
// it: a clock that is set back aborts later. If an action does not return when its context ends,
// its saga waits for it. The shard's hand-over then waits for up to Options.Drain of the
// coordinator.
package saga
