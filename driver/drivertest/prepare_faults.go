package drivertest

import (
	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
