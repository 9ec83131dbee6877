// Package history records the calls of a run and checks them afterwards. It proves
// nothing about calls that were not recorded, does not replay a run, and trusts the
// records.
//
// A history is JSONL: a header line, then one event per line, in the order of one
// writer. Record the invocation before the request is sent and the end after the
// answer arrived. Then every order that a checker relies on is real:
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
// Each judges one guarantee, in one pass over the same events, and ignores other
// operations. Its documentation states what it does not detect.
//
//   - [CheckTokens]: no stale token is accepted
//   - [CheckVersions]: the newest state wins
//   - [CheckUpdates]: no addition is lost or doubled
//   - [CheckCapacity]: no more is taken than there is
//   - [CheckReads]: nothing that was rolled back is read
//   - [CheckDeliveries]: nothing acknowledged is lost, and each key is in order
//   - [CheckEffects]: each acknowledged effect happens exactly once
//   - [CheckSnapshotIsolation], [CheckSerializable]: an order explains all transactions
//
// [InFiles] runs a checker on the histories of several processes.
//
// # Several processes
//
// Each process writes its own file. [Merge] joins files by Mono in constant memory. On
// Linux Mono is CLOCK_BOOTTIME, which all processes of a host share; histories of
// different hosts or boots cannot be merged.
//
// # Transactions
//
// A transaction takes effect at its commit. Record it as one call, invoked before it begins and
// ended by the outcome of its commit. Do not record a call for each statement: a statement that was
// rolled back was never accepted.
//
// # Unknown outcomes
//
// A call whose reply was lost ends with [Info], as in Jepsen; a call of a
// process that died has no end at all. Both mean the same: it may have
// happened at any time after its invocation, or never.
package history
