package once_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestClean deletes records older than the retention, in batches, and no others.
func TestClean(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		var told []observe.OnceCleaned
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing",
			Hooks: &observe.Once{Cleaned: func(e observe.OnceCleaned) { told = append(told, e) }}})
		other := w
		other.inbox.Consumer = "shipping"
		_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 10), effectsOf)
		ok(t, err)
		outcome, err := other.deliver(t.Context(), message(0))
		want(t, outcome, err, once.Done)
		w.age(t, "message_id in ('m0','m1','m2','m3','m4')", 7*24*time.Hour+time.Minute)
		w.age(t, "message_id in ('m5')", 7*24*time.Hour-time.Minute)
		w.age(t, "message_id in ('m6')", -24*time.Hour) // the clock was set back since

		for _, wanted := range []int64{3, 2, 0} {
			if n := w.clean(t, w.inbox, 3); n != wanted {
				t.Errorf("cleaned %d, want %d", n, wanted)
			}
		}
		if n := other.clean(t, other.inbox, 0); n != 1 {
			t.Errorf("cleaned %d of the other consumer", n)
		}
		if got := fmt.Sprint(told); got != "[{billing 3 0 <nil>} {billing 2 0 <nil>} {billing 0 0 <nil>} {shipping 1 0 <nil>}]" {
			t.Errorf("told %s", got)
		}
		for n := range 10 { // kept messages are duplicates
			wanted := once.Duplicate
			if n < 5 {
				wanted = once.Done
			}
			outcome, err := w.deliver(t.Context(), message(n))
			want(t, outcome, err, wanted)
		}
		short := w.inbox
		short.Retention = time.Hour
		if n := w.clean(t, short, 0); n != 1 {
			t.Errorf("cleaned %d after an hour", n)
		}
		w.wantKindOfClean(t, func(in *once.Inbox) { in.Rotated = true }, 0)
		w.wantKindOfClean(t, func(*once.Inbox) {}, -1)
		w.wantKindOfClean(t, func(in *once.Inbox) { in.Consumer = "" }, 0)
	})
}

// TestCleanReadsWhatIsOld, and not every record.
func TestCleanReadsWhatIsOld(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		p := &databases.Planned{BeginnerAt: w.DB}
		p.Do(t, func(ctx context.Context, db driver.SQL) error { _, err := w.inbox.Clean(ctx, db, 0); return err })
		p.Want(t, "recorded_at")
	}, databases.Pgx)
}

// TestCleanHoldsNobodyUp: Clean does not block new messages.
func TestCleanHoldsNobodyUp(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 4), nothingNew)
		ok(t, err)
		w.age(t, "message_id <> 'm3'", 8*24*time.Hour)
		for range 2 { // beside a record that stays, and alone
			tx := w.Begun(t, driver.SessionIsolation)
			n, err := w.inbox.Clean(t.Context(), tx, 0)
			if ok(t, err); n == 0 {
				t.Error("nothing was cleaned")
			}
			second := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), message(100+int(n))) })
			a := second()
			want(t, a.outcome, a.err, once.Done)
			ok(t, tx.Commit(t.Context()))
			w.age(t, "1 = 1", 8*24*time.Hour)
		}
	}, databases.Pgx, databases.Maria)
}

// age makes records that many hours old.
func (w world) age(t *testing.T, which string, by time.Duration) {
	t.Helper()
	interval := fmt.Sprintf("interval %d microsecond", by.Microseconds())
	if w.Dialect == driver.Postgres {
		interval = fmt.Sprintf("interval '%d microseconds'", by.Microseconds())
	}
	w.Exec(t, "update interlock_inbox set recorded_at = recorded_at - "+interval+" where "+which)
}

func (w world) clean(t *testing.T, in once.Inbox, limit int) (n int64) {
	t.Helper()
	w.Do(t, func(ctx context.Context, db driver.SQL) (err error) {
		n, err = in.Clean(ctx, db, limit)
		return err
	})
	return n
}

func (w world) wantKindOfClean(t *testing.T, change func(*once.Inbox), limit int) {
	t.Helper()
	in := w.inbox
	change(&in)
	err := w.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
		_, err := in.Clean(ctx, db, limit)
		return err
	})
	wantKind(t, err, interlock.Bug, nil)
}

// TestRotated tests generations; TestInbox tests the guarantees of an inbox with them.
func TestRotated(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, w world)
	}{
		{"a record outlives one rotation", testOutlives},
		{"a rotation comes when it is time", testDue},
		{"one id on both sides of a rotation", testBothSides},
		{"a rotation does not wait for long", testImpatient},
		{"a snapshot from before a rotation is refused", testStaleSnapshot},
		{"deliveries race with rotations", testRotationRace},
		{"one rotates", testRotators},
		{"a batch over both generations", testBatchOverGenerations},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, newWorld(t, open(t), once.Inbox{Consumer: "billing", Rotated: true}))
			})
		}
	}, databases.Pgx, databases.PgxStd)
}

// expire makes the present generation older.
func (w world) expire(t *testing.T, by string) {
	t.Helper()
	w.Exec(t, `update interlock_inbox_generation set since = since - interval '`+by+`'`)
}

func (w world) tryRotate(ctx context.Context) (rotated bool, err error) {
	err = w.Try(ctx, func(ctx context.Context, db driver.SQL) (err error) {
		rotated, err = w.inbox.Rotate(ctx, db)
		return err
	})
	return rotated, err
}

// rotate expires the generation, and rotates.
func (w world) rotate(t *testing.T) {
	t.Helper()
	w.expire(t, "7 days")
	if rotated, err := w.tryRotate(t.Context()); err != nil || !rotated {
		t.Fatalf("rotated: %v, %v", rotated, err)
	}
}

func testOutlives(t *testing.T, w world) {
	deliver := func(m once.Message, wanted once.Outcome) {
		t.Helper()
		outcome, err := w.deliver(t.Context(), m)
		want(t, outcome, err, wanted)
	}
	for n := range 3 { // in the first generations, and in later ones
		m, old := message(2*n), message(2*n+1)
		deliver(m, once.Done)
		w.rotate(t)
		deliver(m, once.Duplicate)
		_, err := w.deliver(t.Context(), once.Message{ID: m.ID, Payload: []byte("another")})
		wantKind(t, err, interlock.Definite, nil)
		deliver(old, once.Done)
		w.rotate(t)
		deliver(old, once.Duplicate)
		deliver(m, once.Done) // its record is dropped, as documented
	}
	if got := databases.One[int64](t, w.DB, `select count(*) from pg_class where relname like 'interlock_inbox%' and relkind in ('r', 'p')`); got != 5 {
		t.Errorf("%d tables are left", got)
	}
	w.Do(t, w.inbox.Create) // changes nothing
	deliver(message(5), once.Duplicate)
}

func testDue(t *testing.T, w world) {
	rotate := func(wanted bool) {
		t.Helper()
		if rotated, err := w.tryRotate(t.Context()); err != nil || rotated != wanted {
			t.Errorf("rotated: %v, %v, want %v", rotated, err, wanted)
		}
	}
	var told []observe.OnceCleaned
	w.inbox.Hooks = &observe.Once{Cleaned: func(e observe.OnceCleaned) { told = append(told, e) }}
	rotate(false)
	w.expire(t, "6 days 23 hours")
	rotate(false)
	w.expire(t, "1 hour")
	rotate(true)
	rotate(false)
	w.expire(t, "-3 days") // the clock was set back
	rotate(false)
	w.expire(t, "9 days")
	rotate(false)
	w.expire(t, "1 day")
	rotate(true)
	// The longest retention of all processes applies.
	longer, shorter := w.inbox, w.inbox
	longer.Retention, shorter.Retention = 30*24*time.Hour, time.Hour
	w.Do(t, longer.Create)
	w.Do(t, shorter.Create)
	w.expire(t, "29 days")
	rotate(false)
	w.expire(t, "1 day")
	rotate(true)
	if got := fmt.Sprint(told); got != "[{billing 0 2 <nil>} {billing 0 3 <nil>} {billing 0 4 <nil>}]" {
		t.Errorf("told %s", got)
	}
	w.inbox.Rotated = false
	_, err := w.tryRotate(t.Context())
	wantKind(t, err, interlock.Bug, nil)
	w.inbox.Name, w.inbox.Rotated = "nowhere", true
	_, err = w.tryRotate(t.Context())
	wantKind(t, err, interlock.Definite, nil)
}

// testBothSides: a transaction that has recorded an id is open during a rotation, and the same id
// is delivered after it.
func testBothSides(t *testing.T, w world) {
	for i, own := range []error{nil, errors.New("no money")} {
		m := message(i)
		end := w.first(t, m)
		w.expire(t, "7 days")
		rotated := later(t, func() (once.Outcome, error) {
			_, err := w.tryRotate(t.Context())
			return once.Undone, err
		})
		w.wantWaiting(t, 1)
		after := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), m) })
		w.wantWaiting(t, 2) // a delivery waits for the rotation
		end(own)
		ok(t, rotated().err)
		a, wanted := after(), once.Duplicate
		if own != nil {
			wanted = once.Done
		}
		want(t, a.outcome, a.err, wanted)
		w.wantEffects(t, m.ID, 1)
	}
}

func testImpatient(t *testing.T, w world) {
	end := w.first(t, message(1))
	w.expire(t, "7 days")
	_, err := w.tryRotate(t.Context())
	wantKind(t, err, interlock.Retryable, interlock.ErrHeld)
	outcome, err := w.deliver(t.Context(), message(2)) // everything is unchanged
	want(t, outcome, err, once.Done)
	a := end(nil)
	want(t, a.outcome, a.err, once.Done)
	if rotated, err := w.tryRotate(t.Context()); err != nil || !rotated {
		t.Errorf("%v, %v", rotated, err)
	}
	outcome, err = w.deliver(t.Context(), message(1))
	want(t, outcome, err, once.Duplicate)
}

// testStaleSnapshot: transactions that see the inbox as it was before a rotation.
func testStaleSnapshot(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable} {
		m := message(i)
		var late []driver.Tx[driver.SQL]
		for range 2 {
			tx := w.Begun(t, level)
			_, err := databases.Value[int64](t.Context(), tx, `select count(*) from pg_class`)
			ok(t, err)
			late = append(late, tx)
		}
		outcome, err := w.deliver(t.Context(), m) // the transactions do not see its record
		want(t, outcome, err, once.Done)
		w.rotate(t)
		for n, tx := range late {
			m := []once.Message{m, {ID: "new at " + level.String()}}[n]
			outcome, err := w.inbox.Once(t.Context(), tx, m, func(context.Context) error {
				if m.ID == message(i).ID {
					t.Errorf("ran again at %v", level)
				}
				return nil
			})
			if level != driver.ReadCommitted {
				wantKind(t, err, interlock.Retryable, nil)
			} else {
				want(t, outcome, err, []once.Outcome{once.Duplicate, once.Done}[n])
			}
			_ = tx.Rollback(t.Context())
		}
	}
}

// atLevel begins transactions at a level.
type atLevel struct {
	db    driver.BeginnerAt[driver.SQL]
	level driver.Isolation
}

func (a atLevel) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return a.db.BeginAt(ctx, a.level)
}

// testRotationRace: in each round eight deliverers deliver the same messages during one rotation,
// at different levels and times.
func testRotationRace(t *testing.T, w world) {
	const rounds, size = 12, 3
	levels := []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		w.expire(t, "7 days")
		var running sync.WaitGroup
		pause := time.Duration(random.IntN(20)) * time.Millisecond
		running.Go(func() {
			<-time.After(pause) // somewhere among the deliveries
			for range 100 {
				rotated, err := w.tryRotate(t.Context())
				if err == nil && rotated {
					return
				}
				if interlock.Kind(err) != interlock.Retryable {
					t.Errorf("rotated: %v, %v", rotated, err)
					return
				}
			}
		})
		for worker := range 8 {
			db := atLevel{w.DB, levels[(worker+round)%len(levels)]}
			running.Go(func() {
				for n := range size {
					for {
						_, err := once.Tx(t.Context(), db, w.inbox, message(round*size+n), effect(message(round*size+n).ID))
						if err == nil {
							break
						}
						if interlock.Kind(err) != interlock.Retryable {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		running.Wait()
	}
	for n := range rounds * size {
		w.wantEffects(t, message(n).ID, 1)
	}
}

func testRotators(t *testing.T, w world) {
	w.expire(t, "7 days")
	var running sync.WaitGroup
	results := make(chan bool, 6)
	for range cap(results) {
		running.Go(func() {
			rotated, err := w.tryRotate(t.Context())
			if err != nil {
				t.Error(err)
			}
			results <- rotated
		})
	}
	running.Wait()
	close(results)
	n := 0
	for rotated := range results {
		if rotated {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d rotated", n)
	}
	testbed.Eventually(t, "the inbox works", bound, func() bool {
		outcome, err := w.deliver(t.Context(), message(1))
		return err == nil && outcome != once.Undone
	})
}

func testBatchOverGenerations(t *testing.T, w world) {
	_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 4), effectsOf)
	ok(t, err)
	w.rotate(t)
	_, err = once.BatchTx(t.Context(), w.DB, w.inbox, messages(4, 6), effectsOf)
	ok(t, err)
	outcomes, err := once.BatchTx(t.Context(), w.DB, w.inbox, append(messages(2, 8), once.Message{ID: "m1"}), effectsOf)
	ok(t, err)
	if got := fmt.Sprint(outcomes); got != "[duplicate duplicate duplicate duplicate done done mismatched]" {
		t.Errorf("%s", got)
	}
}
