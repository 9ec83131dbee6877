package drivertest

import (
	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// testPreparedOverAKill: a server that is killed knows afterwards what was prepared and
// what was finished.
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

// testKilledWhileWorking: what was not prepared is gone with the server.
func testKilledWhileWorking(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.Kill()
	if vote, err := b.Prepare(s.soon(patience)); vote != driver.VoteNo || err == nil {
		s.Fatalf("it votes %v, %v", vote, err)
	}
	s.faults.Restart()
	again := s.open()
	s.rollback(again, branchOf(1))
	s.mustBeFree(again, "a")
	s.mustRead(again, "a", 0)
}

// testLostReplyToPrepare: nobody knows the vote. It is taken for no, and ends in
// nothing, which is not told before it is so.
func testLostReplyToPrepare(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	if vote, err := b.Prepare(s.soon(unanswered)); vote != driver.VoteNo || err == nil {
		s.Fatalf("it votes %v, %v", vote, err)
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

// testLostReplyToCommit: a commit whose answer was lost is reported as done when it is
// repeated.
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

// testLostReplyToOnePhase: that it may have been committed is said.
func testLostReplyToOnePhase(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.(ReplyDropper).DropReplies()
	s.mustFail(b.CommitOne(s.soon(unanswered)), interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
	s.mustBeFree(s.store, "a")
	s.mustBeInDoubt(s.store)
}

// testCutBeforePrepare: a branch whose session is out of reach is given up.
func testCutBeforePrepare(s *branchScene) {
	b := s.work(s.store, branchOf(1), "a", 1)
	s.faults.Cut()
	if vote, err := b.Prepare(s.soon(unanswered)); vote != driver.VoteNo || err == nil {
		s.Fatalf("it votes %v, %v", vote, err)
	}
	s.faults.Heal()
	again := s.beside()
	s.rollback(again, branchOf(1))
	s.mustBeFree(again, "a")
	s.mustBeInDoubt(again)
}
