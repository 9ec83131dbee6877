package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// JournalHarness gives [RunJournal] access to one driver.Journal and its store.
type JournalHarness = StoreHarness[driver.Journal]

// JournalBackend is one running store of a journal.
type JournalBackend = StoreBackend[driver.Journal]

// RunJournal runs the conformance suite of driver.Journal.
func RunJournal(t *testing.T, h JournalHarness) {
	runStore(t, h, func(s *storeScene[driver.Journal]) *journalScene {
		return &journalScene{storeScene: s, now: time.Now().Truncate(time.Millisecond)}
	}, []suiteTest[*journalScene]{
		// Writing and reading.
		{"MissingTransaction", 0, testMissingTransaction},
		{"RecordsAreRead", 0, testRecordsAreRead},
		{"HeadHasBeginTime", 0, testHeadHasBeginTime},
		{"TransactionsAreData", 0, testTransactionsAreData},
		{"JournalLimits", 0, testJournalLimits},
		{"Payloads", 0, testPayloads},
		{"HeadsInPages", 0, testHeadsInPages},
		{"JournalContextAlreadyEnded", 0, testJournalContextAlreadyEnded},
		{"LostReplyToAppend", Servers | LostReplies | onPaths, testLostReplyToAppend},
		{"JournalOverARestart", Servers, testJournalOverARestart},
		// Write permission.
		{"PositionsGuard", 0, testPositionsGuard},
		{"EndedIsClosed", 0, testEndedIsClosed},
		{"EpochsGuard", 0, testEpochsGuard},
		{"EnterRefusesImplausibleEpoch", 0, testEnterRefusesImplausibleEpoch},
		{"EnterEndsWhatIsUnderWay", 0, testEnterEndsWhatIsUnderWay},
		{"AppendersCompete", 0, testAppendersCompete},
		{"AppendsAreIndependent", 0, testAppendsAreIndependent},
		{"ManyAppendsAtOnce", 0, testManyAppendsAtOnce},
		// Due times.
		{"DueInOrder", 0, testDueInOrder},
		{"ClaimMovesDue", 0, testClaimMovesDue},
		{"ClaimsCompete", 0, testClaimsCompete},
		{"DueShards", 0, testDueShards},
		{"DueShardsOfMany", 0, testDueShardsOfMany},
		{"DueShardsUnderChanges", 0, testDueShardsUnderChanges},
		{"ForgetDeletesEnded", 0, testForgetDeletesEnded},
		{"PutPayloadRefreshes", 0, testPutPayloadRefreshes},
		{"ShardCount", 0, testShardCount},
		{"BeginUnderAnotherShardCount", 0, testBeginUnderAnotherShardCount},
		{"Reassign", 0, testReassign},
		{"UnfinishedIsScheduled", 0, testUnfinishedIsScheduled},
	})
}

// journalScene is one test with its journal and a first opening of it.
type journalScene struct {
	*storeScene[driver.Journal]
	now time.Time // when the test began, in the precision of due times
}

// at returns a due time d after the test began.
func (s *journalScene) at(d time.Duration) time.Time { return s.now.Add(d) }

// enter sets the epoch of a shard.
func (s *journalScene) enter(shard int, ahead int64) interlock.Token {
	s.Helper()
	epoch := s.token(ahead, 0)
	if err := s.store.Enter(s.Context(), shard, epoch); err != nil {
		s.Fatalf("enter shard %d with %d: %v", shard, epoch, err)
	}
	return epoch
}

// records returns one record of each kind, whose data is derived from it.
func records(kinds ...string) []driver.Record {
	var all []driver.Record
	for _, k := range kinds {
		all = append(all, driver.Record{Kind: k, Step: "step of " + k, Data: []byte("data of " + k), Sum: []byte("sum of " + k)})
	}
	return all
}

// begin returns the first append of a transaction in shard 0.
func (s *journalScene) begin(transaction string, due time.Time) driver.Append {
	return driver.Append{Transaction: transaction, Type: "order", Records: records("begin"), Due: due}
}

// appendAfter returns an append of one more record to a transaction in shard 0.
func (s *journalScene) appendAfter(transaction string, after int64, due time.Time) driver.Append {
	return driver.Append{Transaction: transaction, After: after, Records: records("more"), Due: due}
}

// append makes one append.
func (s *journalScene) append(j driver.Journal, a driver.Append) error {
	s.Helper()
	errs := j.Append(s.Context(), []driver.Append{a})
	if len(errs) != 1 {
		s.Fatalf("one append has %d results", len(errs))
	}
	return errs[0]
}

func (s *journalScene) mustAppend(a driver.Append) {
	s.Helper()
	if err := s.append(s.store, a); err != nil {
		s.Fatalf("append to %q after %d: %v", a.Transaction, a.After, err)
	}
}

func (s *journalScene) read(transaction string) (driver.Head, []driver.Record) {
	s.Helper()
	head, all, err := s.store.Read(s.Context(), transaction, 0)
	if err != nil {
		s.Fatalf("read %q: %v", transaction, err)
	}
	if head.Position != int64(len(all)) {
		s.Fatalf("%q is at %d, and has %d records", transaction, head.Position, len(all))
	}
	return head, all
}

// mustStand requires a transaction's head, and records of those kinds.
func (s *journalScene) mustStand(transaction string, due time.Time, kinds ...string) driver.Head {
	s.Helper()
	head, all := s.read(transaction)
	var found []string
	for i, r := range all {
		found = append(found, r.Kind)
		if r.Position != int64(i+1) || !bytes.Equal(r.Data, []byte("data of "+r.Kind)) || !bytes.Equal(r.Sum, []byte("sum of "+r.Kind)) {
			s.Fatalf("record %d of %q: %+v", i+1, transaction, r)
		}
	}
	if fmt.Sprint(found) != fmt.Sprint(kinds) || !head.Due.Equal(due) || due.IsZero() == head.Ended.IsZero() {
		s.Fatalf("%q has %v and is %+v; want %v, due %v", transaction, found, head, kinds, due)
	}
	return head
}

// mustBeElsewhere requires that an append is refused because the transaction is at
// another position.
func (s *journalScene) mustBeElsewhere(err error, transaction string, after, found int64) *driver.PositionError {
	s.Helper()
	s.mustFail(err, interlock.Definite, nil)
	var elsewhere *driver.PositionError
	if !errors.As(err, &elsewhere) || elsewhere.Transaction != transaction || elsewhere.After != after || elsewhere.Found.Position != found {
		s.Fatalf("the refusal of %q after %d: %+v, want position %d", transaction, after, err, found)
	}
	return elsewhere
}

// due returns the ids of the unfinished transactions of a shard, by due time.
func (s *journalScene) due(shard int) []string {
	s.Helper()
	heads, err := s.store.Due(s.Context(), shard, driver.Head{}, 1000)
	if err != nil {
		s.Fatalf("due: %v", err)
	}
	return idsOf(heads)
}

func idsOf(heads []driver.Head) []string {
	ids := []string{}
	for _, h := range heads {
		ids = append(ids, h.Transaction)
	}
	return ids
}

func (s *journalScene) mustBeDue(shard int, want ...string) {
	s.Helper()
	if got := s.due(shard); fmt.Sprint(got) != fmt.Sprint(want) {
		s.Fatalf("due in shard %d: %q, want %q", shard, got, want)
	}
}
