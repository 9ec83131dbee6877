// Package sagatest runs a user's saga with one fault at a time, and reports the steps that do not
// tolerate it. It does not prove that a saga is correct: it compares snapshots only, injects no
// two faults at once, and finds no error of an action without a fault.
//
//	func TestBooking(t *testing.T) {
//		sagatest.Explore(t, func() sagatest.Scene[Order] {
//			w := &sagatest.World{} // a fresh one for each run
//			w.Set("seats", "10")
//			return sagatest.Scene[Order]{Saga: booking(w), Input: order, Snapshot: w.Snapshot}
//		})
//	}
//
// # Scenarios
//
// First the saga runs without faults, twice: it must succeed, with the same world both times.
// Then each call is lost, repeated, late or refused; each saga that succeeds must lead to this
// world, and one that is undone must leave the world unchanged. If there are no findings, the
// engine crashes before and after each call and each append to its journal, and another one
// continues. docs/how-to/testing-sagas.md lists the runs.
//
// # Time
//
// The saga runs on a journal in memory in the virtual time of [testing/synctest]: retries, and
// waits of days, take no time. So actions and undos must not wait for a network, or for anything
// else outside the test. Those that do need [Scene.RealTime]. A [saga.StepTx] cannot be explored:
// its journal is in a database.
//
// # Fakes
//
// A [World] has the state of fakes of participants, with the required guards: [Effect] has one
// effect and one answer for each key, and is refused after its undo.
package sagatest
