// Package tcctest plays a user's TCC transaction again and again, each time with
// another thing that goes wrong, and says which branches do not stand it. It does not
// prove a transaction right: it sees what the snapshot shows, and judges the resources
// that it is given, which in a test are mostly fakes or run on a database of the test.
// Nor does it play two things that go wrong at once, or a try that is wrong by itself.
//
//	func TestBooking(t *testing.T) {
//		tcctest.Explore(t, func() tcctest.Scene {
//			w := &tcctest.World{} // a fresh one for each run
//			w.Set("rooms", "1")
//			s := tcctest.Scene{Snapshot: w.Snapshot}
//			rooms := tcctest.Define(&s, "hotel", hotel{w}) // in place of tcc.Define
//			s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
//				_, err := m.Run(ctx, "booking", id, rooms.Try(night))
//				return err
//			}
//			return s
//		})
//	}
//
// # What is played
//
// First the transaction runs undisturbed, twice: it has to be confirmed, to have a
// branch of each resource, and its world to be the same both times. That is what one
// that is confirmed has to lead to, whatever goes wrong; one that is cancelled has to
// leave the world as it was. Then, for each branch: its try does not arrive, its answer
// is lost, it arrives twice, it arrives once more behind the confirmation; the same of
// its confirmation. It is tried alone, and cancelled; the answer of its try is lost for
// good, or it never arrived, and it is cancelled without its hold; the cancellation does
// not arrive, its answer is lost, it arrives twice; the try arrives once more, or for
// the first time, behind its cancellation. Somebody else runs the same between the
// tries and the confirmations. If the scene has a Sweep, the time of the holds is over
// before they are confirmed, and swept while nobody can be asked. At last, if nothing
// was found until then, each branch is refused when all others are tried, and the
// engine crashes before and after each call and each append to its journal: then the
// transaction is run again, or nobody does and what is past its time is swept.
//
// # Time
//
// The transaction runs on a journal in memory in the virtual time of [testing/synctest]:
// retries, and the time of holds, take no time. So resources must not use a network, or
// anything else outside of the test that they wait for. For those that do there is
// [Scene.RealTime].
//
// # Fakes
//
// A [World] is what fakes of participants can keep their state in. Its holds are guarded
// as participants have to guard them: one effect and one answer for each call of a
// branch, a try that is refused behind its cancellation, and a time.
package tcctest
