package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestShardsMustMatch: a journal opened with a wrong number of shards can neither begin a
// transaction nor own a shard, and the error has both numbers.
func TestShardsMustMatch(t *testing.T) {
	store := memory.NewJournal()
	ok(t, txntest.Second(open(t, store, &journal.Options{Shards: 64}).Begin(t.Context(), "t", "", due, says("begin")...)))
	other := open(t, store, &journal.Options{Shards: 32})
	_, err := other.Begin(t.Context(), "u", "", due, says("begin")...)
	mustMismatch(t, err, 64, 32)
	_, err = other.Own(t.Context(), grant(1), 0)
	mustMismatch(t, err, 64, 32)
	mustMismatch(t, other.CheckShards(t.Context()), 64, 32)
	ok(t, txntest.Second(open(t, store, nil).Own(t.Context(), grant(1), 0)))
}

func mustMismatch(t *testing.T, err error, stored, opened int) {
	t.Helper()
	wantKind(t, err, interlock.Definite, nil)
	var shards *journal.ShardsError
	if !errors.As(err, &shards) || shards.Stored != stored || shards.Opened != opened ||
		!strings.Contains(err.Error(), strings.TrimPrefix(fmt.Sprint(stored), "-")) || !strings.Contains(err.Error(), fmt.Sprint(opened)) {
		t.Errorf("%v, want %d and %d", err, stored, opened)
	}
}

// TestShardsInALentTransaction: a start in the user's transaction is refused as well.
func TestShardsInALentTransaction(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		tx := db.Begun(t, driver.ReadCommitted)
		ok(t, open(t, table, &journal.Options{Shards: 8}).BeginIn(t.Context(), table, tx, "first", "", due, says("begin")...))
		ok(t, tx.Commit(t.Context()))
		ok(t, open(t, table, &journal.Options{Shards: 64}).CheckShards(t.Context()))
		tx = db.Begun(t, driver.ReadCommitted)
		mustMismatch(t, open(t, table, &journal.Options{Shards: 32}).BeginIn(t.Context(), table, tx, "t", "", due, says("begin")...), 64, 32)
	}, databases.Pgx, databases.Maria)
}

// TestSetShards: after a planned change every unfinished transaction is in the shard of its
// id, a former owner writes nothing, and its successor does. The same call completes an
// interrupted change, which blocks the journal until then.
func TestSetShards(t *testing.T) {
	store := memory.NewJournal()
	j := open(t, store, &journal.Options{Shards: 8})
	for i := range 50 {
		log, err := j.Begin(t.Context(), fmt.Sprint("t", i), "", due, says("begin")...)
		ok(t, err)
		if i%5 == 0 {
			ok(t, log.End(t.Context(), says("end")...))
		}
	}
	shard, err := j.Own(t.Context(), grant(1), j.ShardOf("t1"))
	ok(t, err)
	mine, _, err := shard.Open(t.Context(), "t1")
	ok(t, err)

	cut := &cutOff{Journal: store, left: 10}
	if moved, err := journal.SetShards(t.Context(), cut, 5); err == nil || moved != 10 {
		t.Fatalf("%d moved, %v", moved, err)
	}
	mustMismatch(t, open(t, store, &journal.Options{Shards: 5}).CheckShards(t.Context()), -5, 5)
	if _, err := journal.SetShards(t.Context(), store, 6); err == nil {
		t.Error("another change began beside it")
	}
	ok(t, txntest.Second(journal.SetShards(t.Context(), store, 5)))

	after := open(t, store, &journal.Options{Shards: 5})
	heads, err := after.Heads(t.Context(), "", 100)
	ok(t, err)
	for _, h := range heads {
		if h.Ended.IsZero() && h.Shard != after.ShardOf(h.Transaction) {
			t.Errorf("%s is in shard %d, not in %d", h.Transaction, h.Shard, after.ShardOf(h.Transaction))
		}
	}
	wantKind(t, mine.Append(t.Context(), due, says("late")...), interlock.Definite, interlock.ErrStaleToken)
	shard, err = after.Own(t.Context(), grant(2), after.ShardOf("t1"))
	ok(t, err)
	log, _, err := shard.Open(t.Context(), "t1")
	ok(t, err)
	ok(t, log.Append(t.Context(), due, says("sent")...))
}

// TestStartersOfTheOldNumber: a journal that was opened before its number of shards changes
// begins nothing afterwards. The change is recorded.
func TestStartersOfTheOldNumber(t *testing.T) {
	store := memory.NewJournal()
	former := open(t, store, &journal.Options{Shards: 8})
	_, err := former.Begin(t.Context(), "t", "", due, says("begin")...)
	ok(t, err)
	_, _, err = journal.SetShardsBy(t.Context(), store, 5, "ann", "")
	wantKind(t, err, interlock.Bug, nil)
	_, record, err := journal.SetShardsBy(t.Context(), store, 5, "ann", "more services")
	ok(t, err)
	_, err = former.Begin(t.Context(), "u", "", due, says("begin")...)
	mustMismatch(t, err, 5, 8)
	log, entries, err := former.Open(t.Context(), record)
	ok(t, err)
	if data := string(entries[0].Data); log.Head().Ended.IsZero() || data != `{"from":8,"to":5,"by":"ann","reason":"more services"}` {
		t.Errorf("%+v: %s", log.Head(), data)
	}
}

// noAnswer answers no change of the number of shards.
type noAnswer struct{ *memory.Journal }

func (s noAnswer) Shards(ctx context.Context, from, to int) (int, error) {
	if to != 0 {
		return 0, &interlock.Error{Op: "read shards", Kind: interlock.Uncertain, Err: context.DeadlineExceeded}
	}
	return s.Journal.Shards(ctx, from, to)
}

// TestSetShardsWithoutAnswer: the error of the store is the whole error. The number of shards is not known then.
func TestSetShardsWithoutAnswer(t *testing.T) {
	store := memory.NewJournal()
	ok(t, open(t, store, &journal.Options{Shards: 8}).CheckShards(t.Context()))
	_, err := journal.SetShards(t.Context(), noAnswer{store}, 5)
	wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded)
	if errors.As(err, new(*journal.ShardsError)) {
		t.Error(err)
	}
}

// TestSetShardsWaitsForLentTransactions: a transaction that the user's transaction begins
// before a change and commits after it is moved as well.
func TestSetShardsWaitsForLentTransactions(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		j := open(t, table, &journal.Options{Shards: 64})
		ok(t, j.CheckShards(t.Context()))
		tx := db.Begun(t, driver.ReadCommitted)
		ok(t, j.BeginIn(t.Context(), table, tx, "t", "", due, says("begin")...))
		changed := make(chan error, 1)
		go func() {
			_, err := journal.SetShards(t.Context(), table, 3)
			changed <- err
		}()
		select {
		case err := <-changed:
			t.Errorf("it has not waited: %v", err)
			changed <- err
		case <-time.After(200 * time.Millisecond):
		}
		ok(t, tx.Commit(t.Context()))
		ok(t, <-changed)
		after := open(t, table, &journal.Options{Shards: 3})
		log, _, err := after.Open(t.Context(), "t")
		ok(t, err)
		if got, want := log.Head().Shard, after.ShardOf("t"); got != want {
			t.Errorf("it is in shard %d, not in %d", got, want)
		}
		tx = db.Begun(t, driver.ReadCommitted)
		mustMismatch(t, j.BeginIn(t.Context(), table, tx, "u", "", due, says("begin")...), 3, 64)
	}, databases.Pgx, databases.Maria)
}

// cutOff is a store that fails after a number of moves.
type cutOff struct {
	*memory.Journal
	left int
}

func (c *cutOff) Reassign(ctx context.Context, h driver.Head, shard int) error {
	if c.left--; c.left < 0 {
		return &interlock.Error{Op: "reassign", Kind: interlock.Retryable, Err: errors.New("cut off")}
	}
	return c.Journal.Reassign(ctx, h, shard)
}

// late is a store to which a process that was not stopped appends before a move.
type late struct {
	*memory.Journal
	before func()
}

func (l *late) Reassign(ctx context.Context, h driver.Head, shard int) error {
	if do := l.before; do != nil {
		l.before = nil
		do()
	}
	return l.Journal.Reassign(ctx, h, shard)
}

// TestSetShardsMeetsAnAppend of an operator: the transaction is moved nevertheless.
func TestSetShardsMeetsAnAppend(t *testing.T) {
	store := memory.NewJournal()
	j := open(t, store, &journal.Options{Shards: 64})
	var ids []string
	for i := range 5 {
		id := fmt.Sprint("t", i)
		ok(t, txntest.Second(j.Begin(t.Context(), id, "", due, says("begin")...)))
		ids = append(ids, id)
	}
	moved, err := journal.SetShards(t.Context(), &late{Journal: store, before: func() {
		for _, id := range ids {
			log, _, err := j.Open(t.Context(), id)
			ok(t, err)
			ok(t, log.Append(t.Context(), due.Add(-time.Hour), says("signal")...))
		}
	}}, 1)
	if ok(t, err); moved > len(ids) {
		t.Errorf("%d of %d moved", moved, len(ids))
	}
	for _, id := range ids {
		log, _, err := j.Open(t.Context(), id)
		if ok(t, err); log.Head().Shard != 0 {
			t.Errorf("%s is in shard %d, which nobody owns", id, log.Head().Shard)
		}
	}
}
