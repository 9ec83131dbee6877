package once_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func numbered(key string, epoch, seq int64) once.Message {
	id := fmt.Sprintf("%s.%d.%d", key, epoch, seq)
	return once.Message{ID: id, Payload: []byte(id), Key: key, Epoch: epoch, Seq: seq}
}

func (w world) wantGap(t *testing.T, m once.Message, next int64) {
	t.Helper()
	outcome, err := w.deliver(t.Context(), m)
	var gap *once.GapError
	if !errors.As(err, &gap) || outcome != once.Undone || interlock.Kind(err) != interlock.Retryable ||
		*gap != (once.GapError{Consumer: "billing", Key: m.Key, Epoch: m.Epoch, Want: next, Got: m.Seq}) {
		t.Errorf("%v: %v, %v, want a gap before it: %d", m.ID, outcome, err, next)
	}
}

func testSequence(t *testing.T, w world) {
	for _, optimistic := range []bool{false, true} {
		w.inbox.Optimistic = optimistic
		key := fmt.Sprint("optimistic ", optimistic)
		deliver := func(epoch, seq int64, wanted once.Outcome) {
			t.Helper()
			outcome, err := w.deliver(t.Context(), numbered(key, epoch, seq))
			want(t, outcome, err, wanted)
		}
		gap := func(epoch, seq, next int64) {
			t.Helper()
			w.wantGap(t, numbered(key, epoch, seq), next)
		}
		gap(0, 2, 1)
		gap(0, math.MaxInt64, 1)
		deliver(0, 1, once.Done)
		deliver(0, 1, once.Duplicate)
		deliver(0, 2, once.Done)
		deliver(0, 1, once.Duplicate)
		gap(0, 4, 3)
		deliver(0, 3, once.Done)
		deliver(0, 4, once.Done)
		gap(2, 2, 1)
		deliver(2, 1, once.Done) // an epoch may be left out
		deliver(2, 1, once.Duplicate)
		deliver(0, 5, once.Duplicate) // of a former epoch
		deliver(1, 1, once.Duplicate)
		gap(2, 3, 2)
		deliver(2, 2, once.Done)
		again := numbered(key, 2, 2)
		again.Payload = []byte("another")
		outcome, err := w.deliver(t.Context(), again)
		if mismatch, found := errors.AsType[*once.MismatchError](err); !found || outcome != once.Mismatched || mismatch.Message != key+"@2.2" {
			t.Errorf("%v, %v", outcome, err)
		}
		if got := databases.One[int64](t, w.DB, `select count(*) from effect where message like '`+key+`%'`); got != 6 {
			t.Errorf("%d effects", got)
		}
	}
	other := w
	other.inbox.Consumer = "shipping"
	outcome, err := other.deliver(t.Context(), numbered("optimistic true", 0, 1))
	want(t, outcome, err, once.Done)
	// One row a key, for any number of messages, and no records.
	if got := databases.One[int64](t, w.DB, `select count(*) from interlock_inbox_sequence`); got != 3 {
		t.Errorf("%d rows of sequences", got)
	}
	if got := databases.One[int64](t, w.DB, `select count(*) from interlock_inbox`); got != 0 {
		t.Errorf("%d records", got)
	}
}

func testSkip(t *testing.T, w world) {
	skip := func(epoch, seq int64) {
		t.Helper()
		w.Do(t, func(ctx context.Context, db driver.SQL) error { return w.inbox.Skip(ctx, db, "k", epoch, seq) })
	}
	deliver := func(epoch, seq int64, wanted once.Outcome) {
		t.Helper()
		outcome, err := w.deliver(t.Context(), numbered("k", epoch, seq))
		want(t, outcome, err, wanted)
	}
	skip(1, 5000)
	w.wantGap(t, numbered("k", 1, 5002), 5001)
	deliver(1, 5000, once.Duplicate) // whatever its payload was
	deliver(1, 5001, once.Done)
	for _, back := range [][2]int64{{1, 5000}, {0, 9999}, {1, 5001}, {0, 1}} {
		skip(back[0], back[1])
		w.wantGap(t, numbered("k", 1, 5003), 5002)
	}
	skip(1, math.MaxInt64)
	deliver(1, math.MaxInt64, once.Duplicate)
	deliver(2, 1, once.Done)
	for _, bad := range [][2]int64{{0, 0}, {0, -1}, {-1, 1}} {
		wantKind(t, w.Try(t.Context(), func(ctx context.Context, db driver.SQL) error { return w.inbox.Skip(ctx, db, "k", bad[0], bad[1]) }),
			interlock.Bug, nil)
	}
}

// testManyFollow: sixteen deliverers each have a stream with every message of a key, and
// retry Retryable errors: a deadlock, or a gap.
func testManyFollow(t *testing.T, w world) {
	const keys, last = 2, 12
	var running sync.WaitGroup
	var tried atomic.Int64
	for n := range 16 {
		running.Go(func() {
			key := fmt.Sprint("k", n%keys)
			for seq := int64(1); seq <= last; {
				outcome, err := once.Tx(t.Context(), w.DB, w.inbox, numbered(key, 0, seq), func(ctx context.Context, tx driver.SQL) error {
					_, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (message) select concat('%s:', count(*) + 1, ':%d') from effect where message like '%s:%%'`, key, seq, key))
					return err
				})
				switch {
				case err == nil && outcome != once.Undone:
					seq++
				case interlock.Kind(err) != interlock.Retryable || tried.Add(1) > 5000:
					t.Errorf("%v, %v", outcome, err)
					return
				}
			}
		})
	}
	running.Wait()
	for n := range keys {
		for seq := range last {
			w.wantEffects(t, fmt.Sprintf("k%d:%d:%d", n, seq+1, seq+1), 1)
		}
	}
	if got := databases.One[int64](t, w.DB, `select count(*) from effect`); got != keys*last {
		t.Errorf("%d effects", got)
	}
}

// testFollowWaits: a duplicate of a number waits for it; a later number does not, and
// gets an error with the missing number.
func testFollowWaits(t *testing.T, w world) {
	for _, seq := range []int64{1, 2} {
		end := w.first(t, numbered("k", 0, seq))
		same := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), numbered("k", 0, seq)) })
		w.wantWaiting(t, 1)
		a := end(nil)
		want(t, a.outcome, a.err, once.Done)
		a = same()
		want(t, a.outcome, a.err, once.Duplicate)
		w.wantEffects(t, numbered("k", 0, seq).ID, 1)
	}
	end := w.first(t, numbered("k", 0, 3))
	next := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), numbered("k", 0, 3)) })
	w.wantWaiting(t, 1)
	end(errors.New("no money"))
	a := next()
	want(t, a.outcome, a.err, once.Done)
	w.wantEffects(t, numbered("k", 0, 3).ID, 1)
	testbed.Eventually(t, "nobody waits", bound, func() bool { return w.Waiting(t) == 0 })
}

func testOptimisticSequence(t *testing.T, w world) {
	w.inbox.Optimistic = true
	end := w.first(t, numbered("k", 0, 1))
	outcome, err := w.deliver(t.Context(), numbered("k", 0, 1))
	want(t, outcome, err, once.Done)
	a := end(nil)
	wantKind(t, a.err, interlock.Retryable, nil)
	w.wantEffects(t, numbered("k", 0, 1).ID, 1)
}

func testSequenceCosts(t *testing.T, w world) {
	db := &databases.Counted{BeginnerAt: w.DB}
	first := int64(1)
	if w.Dialect == driver.MariaDB {
		first = 2 // one makes the row
	}
	for _, c := range []struct{ seq, statements, commits int64 }{{1, first + 1, 1}, {2, 1 + 1, 1}, {3, 1 + 1, 1}, {3, 2, 0}, {2, 2, 0}} {
		db.Reset()
		m := numbered("k", 0, c.seq)
		_, err := once.Tx(t.Context(), db, w.inbox, m, effect(m.ID))
		ok(t, err)
		if db.Statements.Load() != c.statements || db.Commits.Load() != c.commits {
			t.Errorf("%d: %d statements, %d commits, want %+v", c.seq, db.Statements.Load(), db.Commits.Load(), c)
		}
	}
}
