package barrier_test

import (
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestDatabases runs what needs a database, each test in one of its own. They share the
// servers, which cost more to start than most of them to run.
func TestDatabases(t *testing.T) {
	two := []string{databases.Pgx, databases.Maria} // where clients do not differ
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		for _, c := range []struct {
			name    string
			test    func(*testing.T, world)
			clients []string // nil is all of them
		}{
			{"Crash", testCrash, two},
			{"ForgetCrash", testForgetCrash, two},
			{"Permutations", testPermutations, nil},
			{"Races", testRaces, nil},
			{"Deadlocks", testDeadlocks, two},
			{"Costs", testCosts, nil},
			{"CostsLent", testCostsLent, nil},
			{"Forget", testForget, nil},
			{"BegunMayDiffer", testBegunMayDiffer, two},
			{"LateCallOfALaterBegin", testLateCallOfALaterBegin, nil},
			{"ForgetWaits", testForgetWaits, two},
			{"ForgetSnapshots", testForgetSnapshots, two},
			{"ForgetRaces", testForgetRaces, two},
			{"ForgetExcept", testForgetExcept, two},
			{"ForgetExceptWaits", testForgetExceptWaits, two},
			{"ForgetExceptRaces", testForgetExceptRaces, two},
			{"ForgetOverHTTP", testForgetOverHTTP, two},
			{"CreateAddsExceptions", testCreateAddsExceptions, two},
			{"Spoiled", testSpoiled, nil},
			{"RefusalInLent", testRefusalInLent, nil},
			{"OuterRefusal", testOuterRefusal, nil},
			{"RefusedTwice", testRefusedTwice, two},
			{"Waits", testWaits, two},
			{"Participant", testParticipant, nil},
			{"EndedInside", testEndedInside, nil},
			{"Alarm", testAlarm, two},
			{"BadInput", testBadInput, nil},
			{"Closed", testClosed, nil},
			{"UnknownOutcome", testUnknownOutcome, nil},
			{"UndoUnanswered", testUndoUnanswered, two},
			{"RefusedInDoubt", testRefusedInDoubt, two},
			{"Ongoing", testOngoing, two},
			{"Unstored", testUnstored, nil},
			{"CallerGone", testCallerGone, two},
			{"MixedForms", testMixedForms, nil},
			{"Stopped", testStopped, nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				db := open(t)
				if c.clients == nil || slices.Contains(c.clients, db.Client) {
					c.test(t, newWorld(t, db))
				}
			})
		}
	})
}
