package barrier_test

import (
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// dbTest is a test that needs a separate database.
type dbTest struct {
	name string
	test func(*testing.T, world)
}

// TestDatabases runs each test in a separate database: by every client, or by one of each system if
// clients do not differ.
func TestDatabases(t *testing.T) {
	inDatabases(t, []dbTest{
		{"Permutations", testPermutations},
		{"Races", testRaces},
		{"Costs", testCosts},
		{"CostsLent", testCostsLent},
		{"Spoiled", testSpoiled},
		{"UnknownOutcome", testUnknownOutcome},
	}, databases.All...)
	inDatabases(t, []dbTest{
		{"Forget", testForget},
		{"LateCallOfALaterBegin", testLateCallOfALaterBegin},
		{"RefusalInLent", testRefusalInLent},
		{"OuterRefusal", testOuterRefusal},
		{"Participant", testParticipant},
		{"EndedInside", testEndedInside},
		{"BadInput", testBadInput},
		{"Closed", testClosed},
		{"Unstored", testUnstored},
		{"MixedForms", testMixedForms},
		{"Stopped", testStopped},
	}, databases.PgxStd, databases.MariaInlined)
	inDatabases(t, []dbTest{
		{"Crash", testCrash},
		{"ForgetCrash", testForgetCrash},
		{"Deadlocks", testDeadlocks},
		{"BegunMayDiffer", testBegunMayDiffer},
		{"ForgetWaits", testForgetWaits},
		{"ForgetSnapshots", testForgetSnapshots},
		{"ForgetRaces", testForgetRaces},
		{"ForgetExcept", testForgetExcept},
		{"ForgetExceptWaits", testForgetExceptWaits},
		{"ForgetExceptRaces", testForgetExceptRaces},
		{"ForgetOverHTTP", testForgetOverHTTP},
		{"CreateAddsExceptions", testCreateAddsExceptions},
		{"RefusedTwice", testRefusedTwice},
		{"Waits", testWaits},
		{"Alarm", testAlarm},
		{"UndoUnanswered", testUndoUnanswered},
		{"RefusedInDoubt", testRefusedInDoubt},
		{"Ongoing", testOngoing},
		{"CallerGone", testCallerGone},
	}, databases.Pgx, databases.Maria)
}

func inDatabases(t *testing.T, tests []dbTest, clients ...string) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		for _, c := range tests {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, newWorld(t, open(t)))
			})
		}
	}, clients...)
}
