// Package tcctest runs a user's TCC transaction with one fault at a time, and reports the
// branches that do not tolerate it. It does not prove that a transaction is correct: it
// compares snapshots only, injects no two faults at once, and finds no error of a try without a
// fault.
//
//	func TestBooking(t *testing.T) {
//		tcctest.Explore(t, func() tcctest.Scene {
//			w := &tcctest.World{} // a fresh one for each run
//			w.Set("rooms", "1")
//			s := tcctest.Scene{Snapshot: w.Snapshot}
//			rooms := tcctest.Define(&s, "hotel", hotel{w}) // instead of tcc.Define
//			s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
//				_, err := m.Run(ctx, "booking", id, rooms.Try(night))
//				return err
//			}
//			return s
//		})
//	}
//
// # Scenarios
//
// First the transaction runs without faults, twice: it must be confirmed, with a branch of each
// resource and the same world both times. Then each call is lost, repeated, late or refused;
// each confirmed transaction must lead to this world, and a cancelled one must leave the world
// unchanged. If the scene has a Sweep, the holds expire before they are confirmed. If there are
// no findings, the engine crashes before and after each call and each append to its journal.
// docs/how-to/testing-sagas.md lists the runs.
//
// # Time
//
// The transaction runs on a journal in memory in the virtual time of [testing/synctest]:
// retries and the expiry of holds take no time. So resources must not wait for a network, or for
// anything else outside the test. Those that do need [Scene.RealTime].
//
// # Fakes
//
// A [World] has the state of fakes of participants, with the required guards: each call of a
// branch has one effect and one answer, a try is refused after its cancellation, and holds
// expire.
package tcctest
