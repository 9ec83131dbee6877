package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func xid(transaction string) driver.XID { return driver.XID{Transaction: transaction, Branch: "bank"} }

// kept starts a branch that adds to a number.
func kept(t *testing.T, p *memory.Participant, x driver.XID) driver.Preparing {
	t.Helper()
	tx, branch, err := p.Begin(t.Context(), x)
	testbed.OK(t, err)
	if n, err := tx.Add(x.Transaction, 5); n != 5 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	return branch
}

func prepare(t *testing.T, b driver.Preparing, want driver.Vote) {
	t.Helper()
	if vote, err := b.Prepare(t.Context()); vote != want || err != nil {
		t.Fatalf("voted %v, %v, want %v", vote, err, want)
	}
}

// TestPreparedOutlastsRestart: branches that voted yes keep their locks after a crash; others are
// gone.
func TestPreparedOutlastsRestart(t *testing.T) {
	p := memory.NewParticipant()
	prepare(t, kept(t, p, xid("a")), driver.VoteYes)
	lost := kept(t, p, xid("b"))
	testbed.WantKind(t, p.Commit(t.Context(), xid("b")), interlock.Bug, nil)
	p.Restart()
	if doubts, err := p.InDoubt(t.Context()); len(doubts) != 1 || doubts[0].XID != xid("a") || doubts[0].Since.IsZero() || err != nil {
		t.Errorf("%+v, %v", doubts, err)
	}
	vote, err := lost.Prepare(t.Context())
	testbed.WantKind(t, err, interlock.Definite, nil)
	if vote != driver.VoteNo || p.Get("a") != 0 {
		t.Errorf("voted %v; a is %d before its commit", vote, p.Get("a"))
	}
	tx, other, err := p.Begin(t.Context(), xid("c"))
	testbed.OK(t, err)
	_, err = tx.Get("a")
	testbed.WantKind(t, err, interlock.Retryable, interlock.ErrHeld)
	prepare(t, other, driver.VoteReadOnly)
	for range 2 {
		if err := p.Commit(t.Context(), xid("a")); err != nil || p.Get("a") != 5 {
			t.Errorf("%v, %d", err, p.Get("a"))
		}
	}
	testbed.WantKind(t, p.Rollback(t.Context(), xid("a")), interlock.Definite, driver.ErrHeuristic)
	testbed.WantKind(t, p.Commit(t.Context(), xid("b")), interlock.Definite, driver.ErrHeuristic)
	testbed.OK(t, p.Rollback(t.Context(), xid("never")))
	_, _, err = p.Begin(t.Context(), xid("never"))
	testbed.WantKind(t, err, interlock.Bug, nil)
}
