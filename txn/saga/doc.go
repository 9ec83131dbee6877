// Package saga runs steps to their end, or takes back what they did. It does not
// isolate: others see what a saga has done before it has ended. It does not make a
// step happen once: it calls it at least once, always with the same key, and the
// target has to see to the rest. Nor does it take back what nobody can: a saga whose
// undo fails for good becomes a dead letter and waits for a person. What it gives:
// once Start has returned, every step is done, or every step that was or may have
// been done is undone, or the saga is a dead letter and tells so; whatever crashes
// in between, and however often.
//
//	hold := saga.Step("hold", holdSeat).Undo("release", releaseSeat)
//	pay := saga.Step("pay", func(ctx context.Context, o Order) (Receipt, error) {
//		seat, err := hold.Output(ctx) // of an earlier step
//		…
//		return bank.Charge(ctx, saga.From(ctx).Key(), seat.Price) // the bank refuses a second charge under a key
//	}).Pivot()
//	book := saga.Define("book", hold, pay, saga.Step("mail", mail))
//
//	c, err := coordinator.New(j, nil)     // j: a journal.Journal
//	engine, err := saga.New(c, nil, book)
//	go locks.Keep(ctx, "orders", c.Run)   // locks: a lock.Fenced; or Serve, for each shard
//	outcome, err := book.Do(ctx, engine, "booking/42", order)
//
// # Order
//
// A saga is a list of stages: a step, a [Parallel] group of steps, a [Sleep], or a
// [Signal], which waits for a person or another system. The
// list is fixed ([Define]), computed from the input ([DefineList]), or what a function
// asks for on its way ([DefineFunc]), whose steps have inputs of their own. The
// decision whether to commit or to abort is made once. After the pivot is done it can
// only be to commit. Undos go stage by stage in reverse, those of one stage at the
// same time, by what the journal says: what the steps were is not asked of the code.
// An undo that is given up does not stop the others.
//
// # Cost
//
// Before a step is called that may have to be undone, or the pivot, a record that it
// may have been is durable: those of all steps before the pivot are written when the
// saga begins. What was done is written together with the next record that must be
// durable, or before the next call or wait if it is a quarter of a second old then;
// until it is, however long that call takes, a crash is repaired by calling the step
// again, under the same key. So a saga of any number of steps costs
// two appends to the journal, one more if a pivot comes after other steps, one more
// if it is aborted, and two for each wait, beside what its targets write. The stages
// of a function are not known before it asks for them: each is one append.
//
// [Definition.StartTx] begins a saga in a transaction of the user's database, and
// [StepTx] is a step that commits there with its record, exactly once.
//
// # Failures
//
// A call that fails with [Fail] has not happened, and the saga is aborted; with
// [Retry] it has not happened, and is repeated; any other error leaves open whether
// it has happened: it is repeated, then given up and undone. A Fail that follows a
// call which may have happened, one before a crash too, does not prove that nothing
// has: such a step is undone as well, and its undo learns that nothing is known.
// After a crash that is so for all steps that were to come before the pivot, called
// or not. The pivot is repeated until its outcome is known. A target must therefore
// give every call of one key the first one's answer, answer an undo of what it never
// heard of, and refuse a call that comes after its undo; txn/barrier does that.
//
// What is unfinished never expires, and has a due time always. A dead letter counts
// as unfinished. An [Operator] has its undos tried again, skips them, or closes it, and
// goes on without a step that has to be done behind the pivot and cannot be; it has a
// saga undone that nobody wants any more, and records the outcome of a pivot that does
// not answer.
//
// A step that crashes its process crashes the next owner too. After TakeOvers of the
// coordinator's Options, 10 in a row without an answer, the saga is halted: it is a dead
// letter as it stands, whatever was decided, until an Operator's Retry, or whatever else
// is possible there, has it go on.
//
// # Versions
//
// A definition whose steps change gets another [Definition.Version]. Each saga is driven by
// the version that it began with, so a deployment gives its engine the old versions too
// until their sagas have ended. An owner without the definition of a saga leaves it as it
// is, without reading it, to the shard's next owner, and says so: see Foreign of
// coordinator.Coordinator and observe.Coordinator.
//
// # Owners
//
// Each shard of the journal is driven by the holder of its claim. Who is stopped and
// wakes up later appends nothing: the journal knows the epoch. But a call that it
// had begun may still arrive, next to the new owner's: the key covers that, and the
// call's Epoch can be shown to a guard.
//
// # Limits
//
// The journal has the last error of a step that fails, and how often it has failed, as of
// its first, second, fourth, eighth … failure and so on, and once an hour: a new owner
// counts from there. Deadlines are wall-clock times of the process that started the saga,
// and are compared with the clock of the one that drives it: a clock that is set back
// aborts later. An action that does not return when its context ends keeps its saga,
// and for Options.Drain of the coordinator who serves the shard, waiting.
package saga
