package memory_test

import (
	"context"
	"errors"
	"strings"
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

func kind(t *testing.T, err error, want interlock.ErrorKind, is error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != want || is != nil && !errors.Is(err, is) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), want, is)
	}
}

// TestPreparedOutlastsRestart: branches that voted yes are still there and locked
// after a crash, others are not.
func TestPreparedOutlastsRestart(t *testing.T) {
	p := memory.NewParticipant()
	prepare(t, kept(t, p, xid("a")), driver.VoteYes)
	lost := kept(t, p, xid("b"))
	p.Restart()
	if doubts, err := p.InDoubt(t.Context()); len(doubts) != 1 || doubts[0].XID != xid("a") || doubts[0].Since.IsZero() || err != nil {
		t.Errorf("%+v, %v", doubts, err)
	}
	vote, err := lost.Prepare(t.Context())
	kind(t, err, interlock.Definite, nil)
	if vote != driver.VoteNo || p.Get("a") != 0 {
		t.Errorf("voted %v; a is %d before its commit", vote, p.Get("a"))
	}
	tx, other, err := p.Begin(t.Context(), xid("c"))
	testbed.OK(t, err)
	_, err = tx.Get("a")
	kind(t, err, interlock.Retryable, interlock.ErrHeld)
	prepare(t, other, driver.VoteReadOnly)
	for range 2 {
		if err := p.Commit(t.Context(), xid("a")); err != nil || p.Get("a") != 5 {
			t.Errorf("%v, %d", err, p.Get("a"))
		}
	}
	kind(t, p.Rollback(t.Context(), xid("a")), interlock.Definite, driver.ErrHeuristic)
	kind(t, p.Commit(t.Context(), xid("b")), interlock.Definite, driver.ErrHeuristic)
}

// TestLatePrepare: a branch that was rolled back before its prepare arrives votes no.
func TestLatePrepare(t *testing.T) {
	p := memory.NewParticipant()
	b := kept(t, p, xid("a"))
	for range 2 {
		if err := p.Rollback(t.Context(), xid("a")); err != nil {
			t.Error(err)
		}
	}
	vote, err := b.Prepare(t.Context())
	kind(t, err, interlock.Definite, nil)
	if doubts, _ := p.InDoubt(t.Context()); vote != driver.VoteNo || len(doubts) != 0 {
		t.Errorf("voted %v; in doubt %v", vote, doubts)
	}
	if err := p.Rollback(t.Context(), xid("never")); err != nil {
		t.Error(err)
	}
	_, _, err = p.Begin(t.Context(), xid("never"))
	kind(t, err, interlock.Bug, nil)
}

// TestCommitOne: one phase leaves nothing in doubt, and Abandon leaves nothing.
func TestCommitOne(t *testing.T) {
	p := memory.NewParticipant()
	one, left := kept(t, p, xid("one")), kept(t, p, xid("left"))
	kind(t, p.Commit(t.Context(), xid("one")), interlock.Bug, nil)
	if err := one.CommitOne(t.Context()); err != nil || p.Get("one") != 5 {
		t.Errorf("%v, %d", err, p.Get("one"))
	}
	for _, b := range []driver.Preparing{one, left, left} {
		if err := b.Abandon(t.Context()); err != nil {
			t.Error(err)
		}
	}
	kind(t, left.CommitOne(t.Context()), interlock.Definite, nil)
	if p.Get("one") != 5 || p.Get("left") != 0 {
		t.Errorf("%d, %d", p.Get("one"), p.Get("left"))
	}
}

// TestParticipantMisuse: names beyond the limits and ended contexts have clear errors.
func TestParticipantMisuse(t *testing.T) {
	p := memory.NewParticipant()
	for _, x := range []driver.XID{{}, {Transaction: "a"}, {Branch: "b"}, {Transaction: "a b", Branch: "b"},
		{Transaction: "a", Branch: "b/c"}, {Transaction: "a'", Branch: "b"}, {Transaction: "ä", Branch: "b"},
		{Transaction: strings.Repeat("a", driver.MaxXIDTransaction+1), Branch: "b"},
		{Transaction: "a", Branch: strings.Repeat("b", driver.MaxXIDBranch+1)}} {
		_, _, err := p.Begin(t.Context(), x)
		kind(t, err, interlock.Bug, nil)
		kind(t, p.Commit(t.Context(), x), interlock.Bug, nil)
		kind(t, p.Rollback(t.Context(), x), interlock.Bug, nil)
	}
	longest := driver.XID{Transaction: strings.Repeat("~", driver.MaxXIDTransaction), Branch: strings.Repeat("-", driver.MaxXIDBranch)}
	prepare(t, kept(t, p, longest), driver.VoteYes)

	b := kept(t, p, xid("a"))
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := b.Prepare(ended)
	kind(t, err, interlock.Definite, context.Canceled)
	_, err = p.InDoubt(ended)
	kind(t, err, interlock.Definite, context.Canceled)
	kind(t, p.Commit(ended, longest), interlock.Definite, context.Canceled)
	prepare(t, b, driver.VoteYes)
	_, err = b.Prepare(t.Context())
	kind(t, err, interlock.Bug, nil)
}
