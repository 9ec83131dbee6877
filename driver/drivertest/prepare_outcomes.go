package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func testPreparedIsCommitted(s *branchScene) {
	x := branchOf(1)
	s.prepared(x, "a", 7)
	s.mustRead(s.store, "a", 0)
	for range 2 { // and again
		s.commit(s.store, x)
		s.mustRead(s.store, "a", 7)
	}
	s.mustBeHeuristic("roll back", x, s.store.Rollback)
	s.mustRead(s.store, "a", 7)
	s.mustBeInDoubt(s.store)
	s.mustBeFree(s.store, "a")
}

func testPreparedIsRolledBack(s *branchScene) {
	x := branchOf(1)
	s.prepared(x, "a", 7)
	for range 2 {
		s.rollback(s.store, x)
	}
	s.mustBeHeuristic("commit", x, s.store.Commit)
	s.mustBeHeuristic("commit of a missing branch", branchOf(2), s.store.Commit)
	s.rollback(s.store, branchOf(3)) // never began
	s.mustBeHeuristic("commit of a branch rolled back before it began", branchOf(3), s.store.Commit)
	s.mustRead(s.store, "a", 0)
	s.mustBeInDoubt(s.store)
	s.mustBeFree(s.store, "a")
}

// testNothingChanged checks that a branch that only read, and one that is committed in one phase,
// need no decision.
func testNothingChanged(s *branchScene) {
	for n := range 3 { // includes a session that has written before
		_, b, err := s.store.Begin(s.Context(), branchOf(n))
		testbed.OK(s, err)
		s.vote(b, driver.VoteReadOnly)
		s.mustBeInDoubt(s.store)
		one := s.work(s.store, branchOf(10+n), "a", n)
		testbed.OK(s, one.CommitOne(s.Context()))
	}
	s.mustRead(s.store, "a", 2)
	s.mustBeInDoubt(s.store)
	s.mustBeFree(s.store, "a")
}

// testInDoubtIsListed checks the names, which are data, and the times.
func testInDoubtIsListed(s *branchScene) {
	names := []driver.XID{
		{Transaction: "a/b", Branch: "c"}, {Transaction: "b", Branch: "c-a"}, {Transaction: "A/B", Branch: "c"},
		{Transaction: "-._~:/", Branch: "_"}, {Transaction: "a", Branch: "b"}, {Transaction: "a", Branch: "B"},
		{Transaction: strings.Repeat("x", driver.MaxXIDTransaction), Branch: strings.Repeat("y", driver.MaxXIDBranch)},
	}
	began := time.Now()
	for i, x := range names {
		s.prepared(x, string(rune('a'+i)), 1)
	}
	for _, d := range s.mustBeInDoubt(s.open(), names...) {
		if !d.Since.IsZero() && d.Since.Sub(began).Abs() > time.Hour {
			s.Errorf("%v is in doubt since %v, and began at %v", d.XID, d.Since, began)
		}
	}
	for i, x := range names {
		s.commit(s.store, x)
		s.mustBeInDoubt(s.store, names[i+1:]...)
	}
}

// testLatePrepareVotesNo checks that a rolled-back branch cannot be prepared.
func testLatePrepareVotesNo(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 7)
	s.rollback(s.open(), branchOf(1))
	if vote, err := b.Prepare(s.Context()); vote != driver.VoteNo || interlock.Kind(err) == interlock.Uncertain {
		s.Fatalf("a branch that was rolled back votes %v, %v", vote, err)
	}
	s.mustBeInDoubt(s.store)
	s.mustBeFree(s.store, "a")
	s.mustRead(s.store, "a", 0)
}

// testNamesAreUsedOnce checks that a second branch of a name does not wait for the first,
// affect it, or be confused with it.
func testNamesAreUsedOnce(s *branchScene) {
	x := branchOf(1)
	again := func(when string) {
		s.Helper()
		ctx := s.soon(patience)
		write, b, err := s.store.Begin(ctx, x)
		if err == nil {
			if err := write(ctx, "b", 2); err != nil {
				s.Fatalf("%s: %v", when, err)
			}
			var vote driver.Vote
			if vote, err = b.Prepare(ctx); vote != driver.VoteNo {
				s.Fatalf("%s: another branch of that name votes %v, %v", when, vote, err)
			}
		}
		if err == nil || interlock.Kind(err) == interlock.Uncertain || ctx.Err() != nil {
			s.Fatalf("%s: another branch of that name: %v", when, err)
		}
	}
	s.prepared(x, "a", 1)
	again("prepared")
	s.mustBeInDoubt(s.store, x)
	s.commit(s.store, x)
	again("committed")
	s.commit(s.store, x)
	s.mustRead(s.store, "a", 1)
	s.mustRead(s.store, "b", 0)
	s.mustBeInDoubt(s.store)
}

// testCommittersRace checks that two processes that finish a branch both find it finished.
func testCommittersRace(s *branchScene) {
	other := s.open()
	for n := range 20 {
		x := branchOf(n)
		s.prepared(x, "a", n)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { s.finishes([]Branches{s.store, other}[i%2].Commit, x, nil) })
		}
		all.Wait()
		s.mustRead(s.store, "a", n)
	}
}

// finishes is persist for goroutines other than the test's.
func (s *branchScene) finishes(do func(context.Context, driver.XID) error, x driver.XID, otherwise error) (done bool) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch err := do(s.Context(), x); {
		case err == nil:
			return true
		case otherwise != nil && errors.Is(err, otherwise):
			return false
		case interlock.Kind(err) != interlock.Retryable:
			s.Errorf("%v: %v", x, err)
			return false
		}
	}
	s.Errorf("%v is not finished after %v", x, patience)
	return false
}

// testCommitAgainstRollback checks that, of two different decisions, the loser is reported
// and the visible state is that of the winner.
func testCommitAgainstRollback(s *branchScene) {
	other := s.open()
	order := rand.New(rand.NewPCG(1, 2))
	kept := 0
	for n := range 20 {
		x := branchOf(n)
		s.prepared(x, "a", 100+n)
		var committed, rolledBack bool
		delay := time.Duration(order.IntN(300)) * time.Microsecond
		var all sync.WaitGroup
		all.Go(func() { committed = s.finishes(s.store.Commit, x, driver.ErrHeuristic) })
		all.Go(func() {
			time.Sleep(delay)
			rolledBack = s.finishes(other.Rollback, x, driver.ErrHeuristic)
		})
		all.Wait()
		if committed == rolledBack {
			s.Fatalf("%v: committed %v, rolled back %v", x, committed, rolledBack)
		}
		if committed {
			kept = 100 + n
		}
		s.mustRead(s.store, "a", kept)
	}
}

// testPreparedOverAKill checks that prepared and finished branches survive a kill of the
// server.
func testPreparedOverAKill(s *branchScene) {
	s.prepared(branchOf(1), "a", 1)
	s.prepared(branchOf(2), "b", 2)
	s.prepared(branchOf(3), "c", 3)
	s.commit(s.store, branchOf(3))
	s.faults.Kill()
	s.faults.Restart()
	again := s.open()
	s.mustRead(again, "a", 0)
	s.mustBeInDoubt(again, branchOf(1), branchOf(2))
	s.commit(again, branchOf(1))
	s.rollback(again, branchOf(2))
	for _, n := range []int{1, 3} {
		s.commit(again, branchOf(n))
	}
	s.mustBeHeuristic("roll back", branchOf(3), again.Rollback)
	for key, want := range map[string]int{"a": 1, "b": 0, "c": 3} {
		s.mustRead(again, key, want)
		s.mustBeFree(again, key)
	}
	s.mustBeInDoubt(again)
}

// testKilledWhileWorking checks that an unprepared branch does not survive a kill.
func testKilledWhileWorking(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.Kill()
	if vote, err := b.Prepare(s.soon(patience)); vote != driver.VoteNo || err == nil {
		s.Fatalf("the vote is %v, %v", vote, err)
	}
	s.faults.Restart()
	again := s.open()
	s.rollback(again, branchOf(1))
	s.mustBeFree(again, "a")
	s.mustRead(again, "a", 0)
}

// testLostReplyToPrepare checks that a branch with an unknown vote counts as no and is
// rolled back, which is reported only when it is certain.
func testLostReplyToPrepare(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	if vote, err := b.Prepare(s.soon(unanswered)); vote != driver.VoteNo || err == nil {
		s.Fatalf("the vote is %v, %v", vote, err)
	}
	beside := s.beside()
	err := beside.Rollback(s.soon(patience), branchOf(1))
	if err != nil && interlock.Kind(err) != interlock.Retryable {
		s.Fatalf("roll back while the session lives: %v", err)
	}
	s.faults.Heal()
	s.rollback(beside, branchOf(1))
	s.mustBeInDoubt(beside)
	s.mustBeFree(beside, "a")
	s.mustRead(beside, "a", 0)
}

// testLostReplyToCommit checks that a repeated commit whose first answer was lost is
// reported as done.
func testLostReplyToCommit(s *branchScene) {
	s.prepared(branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	s.mustFail(s.store.Commit(s.soon(unanswered), branchOf(1)), interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
	s.commit(s.store, branchOf(1))
	s.mustRead(s.store, "a", 1)
	s.mustBeInDoubt(s.store)
}

func testLostReplyToRollback(s *branchScene) {
	s.prepared(branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	s.mustFail(s.store.Rollback(s.soon(unanswered), branchOf(1)), interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
	s.rollback(s.store, branchOf(1))
	s.mustRead(s.store, "a", 0)
	s.mustBeInDoubt(s.store)
	s.mustBeFree(s.store, "a")
}

// testLostReplyToOnePhase checks that the error reports a possible commit.
func testLostReplyToOnePhase(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	s.mustFail(b.CommitOne(s.soon(unanswered)), interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
	s.mustBeFree(s.store, "a")
	s.mustBeInDoubt(s.store)
}

// testCutBeforePrepare checks that a branch with an unreachable session is abandoned.
func testCutBeforePrepare(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.Cut()
	if vote, err := b.Prepare(s.soon(unanswered)); vote != driver.VoteNo || err == nil {
		s.Fatalf("the vote is %v, %v", vote, err)
	}
	s.faults.Heal()
	again := s.beside()
	s.rollback(again, branchOf(1))
	s.mustBeFree(again, "a")
	s.mustBeInDoubt(again)
}
