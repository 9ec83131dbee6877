// Package history records what a run did and judges it afterwards. It does not
// prove anything about calls that were not recorded, does not replay a run, and
// takes what was recorded as true.
//
// A history is JSONL: a header line, then one event per line, in the order in
// which one writer saw them. Record the invocation before the request leaves
// and the end after the answer came, and every order the checker relies on is
// an order that really was:
//
//	w, err := history.Create("worker-a.jsonl", history.Header{Run: "story"}, nil)
//	call := w.Invoke(history.Event{Lane: "A", Op: history.OpWrite, Key: "account/42", Token: c.Token()})
//	call.End(withdraw(ctx)) // ok, reject, fail or info, by the kind of the error
//	err = w.Close()
//
//	report, err := history.CheckFiles("worker-a.jsonl", "worker-b.jsonl")
//
// # Checkers
//
// Each judges one promise, in one pass over the same events, and leaves alone
// what it does not know. What each does not see is said there.
//
//   - [CheckTokens]: no stale token is accepted
//   - [CheckVersions]: the newest state wins
//   - [CheckUpdates]: no addition is lost or doubled
//   - [CheckCapacity]: no more is taken than there is
//   - [CheckReads]: nothing that was rolled back is read
//   - [CheckDeliveries]: nothing acknowledged is lost, and each key is in order
//   - [CheckEffects]: what was acknowledged took place exactly once
//   - [CheckSnapshotIsolation], [CheckSerializable]: an order explains all transactions
//
// [InFiles] lets one judge what several processes wrote.
//
// # Several processes
//
// Each process writes its own file. A process can be stopped between reading
// the clock and writing the line, so lines of several processes in one file
// would not be in order; one file each always is, and [Merge] joins files by
// Mono in constant memory. On Linux Mono is CLOCK_BOOTTIME, which all processes
// of a host share; histories of different hosts or boots cannot be merged.
//
// # Transactions
//
// What a transaction did counts from its commit. Record the transaction as one
// call, invoked before it begins and ended by the outcome of its commit, not
// one call for each statement: a statement that was rolled back was never
// accepted.
//
// # Unknown outcomes
//
// A call whose reply was lost ends with [Info], as in Jepsen; a call of a
// process that died has no end at all. Both mean the same: it may have
// happened at any time after its invocation, or never.
package history
