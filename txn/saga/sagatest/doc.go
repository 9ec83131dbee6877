// Package sagatest plays a user's saga again and again, each time with another thing
// that goes wrong, and says which steps do not stand it. It does not prove a saga
// right: it sees what the snapshot shows, and judges the actions and undos that it is
// given, which in a test are mostly fakes or run on a database of the test. Nor does it
// play two things that go wrong at once, or an action that is wrong by itself.
//
//	func TestBooking(t *testing.T) {
//		sagatest.Explore(t, func() sagatest.Scene[Order] {
//			w := &sagatest.World{} // a fresh one for each run
//			w.Set("seats", "10")
//			return sagatest.Scene[Order]{Saga: booking(w), Input: order, Snapshot: w.Snapshot}
//		})
//	}
//
// # What is played
//
// First the saga runs undisturbed, twice: it has to succeed, and its world to be the
// same both times. That is what a saga that succeeds has to lead to, whatever goes
// wrong; one that is undone has to leave the world as it was. Then, for each step: its
// answer is lost and it is called again; it is delivered twice. For each step with an
// undo: what comes after it is refused, and it is undone; its answer is lost for good,
// or it never arrived, and its undo is called without its output; the undo does not
// arrive, its answer is lost, it is delivered twice; the action arrives once more, or
// for the first time, behind its undo. At last, if nothing was found until then, each
// stage is refused as a whole, and the engine crashes before and after each call and
// each append to its journal, and another one goes on.
//
// # Time
//
// The saga runs on a journal in memory in the virtual time of [testing/synctest]:
// retries, and waits of days, take no time. So actions and undos must not use a
// network, or anything else outside of the test that they wait for. For those that do
// there is [Scene.RealTime]. A [saga.StepTx] cannot be explored: its journal is in a
// database.
//
// # Fakes
//
// A [World] is what fakes of participants can keep their state in. Its effects are
// guarded as participants have to be: [Effect] has one effect and one answer for each
// key, and is refused behind its undo.
package sagatest
