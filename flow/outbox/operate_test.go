package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// poison returns the error of a sink that rejects a message itself.
func poison(text string) error {
	return &interlock.Error{Op: "publish", Kind: interlock.Definite, Err: errors.New(text)}
}

// refuse makes a sink refuse some ids until accept is called.
func refuse(sink *memory.Sink, err error, ids ...string) (accept func()) {
	var over atomic.Bool
	sink.Refuse(func(m driver.Message) error {
		if slices.Contains(ids, m.ID) && !over.Load() {
			return err
		}
		return nil
	})
	return func() { over.Store(true) }
}

func status(tb testing.TB, db *databases.DB) (s outbox.Status) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, sql driver.SQL) (err error) {
		s, err = box.Status(ctx, sql)
		return err
	})
	return s
}

// waiting waits until n keys wait, and returns them.
func waiting(tb testing.TB, db *databases.DB, n int, matches func(outbox.Waiting) bool) (w []outbox.Waiting) {
	tb.Helper()
	testbed.Eventually(tb, fmt.Sprintf("%d keys wait", n), bound, func() bool {
		w = status(tb, db).Waiting
		return len(w) == n && !slices.ContainsFunc(w, func(w outbox.Waiting) bool { return !matches(w) })
	})
	return w
}

// of returns the ids of one key.
func of(key string, ids []string) (own []string) {
	for _, id := range ids {
		if strings.HasPrefix(id, key+"/") {
			own = append(own, id)
		}
	}
	return own
}

// inOrder fails the test unless the ids of key are 1 to n, in order.
func inOrder(tb testing.TB, key string, ids []string, n int) {
	tb.Helper()
	var want []string
	for i := 1; i <= n; i++ {
		want = append(want, fmt.Sprintf("%s/%d", key, i))
	}
	if got := of(key, ids); !slices.Equal(got, want) {
		tb.Errorf("%s: first deliveries %.300v, want 1 to %d in order", key, got, n)
	}
}

// testPoisonBlocksItsKey: other keys continue, later messages of the key wait, and Status shows the
// reason.
func testPoisonBlocksItsKey(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var hooked atomic.Int64
	accept := refuse(&sink, poison("never \x00\xff"), "bad/2")
	serve(t, relay(t, db, &sink, outbox.Options{Batch: 7, Hooks: &observe.Outbox{Failed: func(e observe.OutboxFailed) {
		if e.ID == "bad/2" && e.Poison && !e.Dead && e.Pause > 0 {
			hooked.Add(1)
		}
	}}}), grant(1))
	add(t, db, slices.Concat(keyed("bad", 1, 150), keyed("good", 1, 50))...)
	inOrder(t, "good", delivered(t, &sink, 51), 50)
	w := waiting(t, db, 1, func(w outbox.Waiting) bool { return w.Messages == 149 && w.Attempts > 1 })[0]
	if w.Topic != "t" || w.Key != "bad" || w.ID != "bad/2" || w.Why != outbox.WhyBlocked ||
		!strings.HasPrefix(w.LastError, "publish: never ") || time.Since(w.Since).Abs() > time.Hour || w.Until.IsZero() {
		t.Errorf("%+v", w)
	}
	testbed.Eventually(t, "the hook is called", bound, func() bool { return hooked.Load() >= 2 })
	add(t, db, keyed("bad", 151, 160)...)
	add(t, db, keyed("good", 51, 60)...)
	delivered(t, &sink, 61)
	s := status(t, db)
	if s.Keys != 1 || s.Dead != 0 || s.Oldest <= 0 || len(s.Slices) != box.Slices {
		t.Errorf("%+v", s)
	}
	for _, v := range s.Slices {
		if v.Owner != grant(1).Owner() || v.Token != grant(1).Token() || v.Since.IsZero() {
			t.Errorf("%+v", v)
		}
	}
	accept()
	inOrder(t, "bad", delivered(t, &sink, 220), 160)
	empty(t, db)
}

// testRetries: a message is retried if its error permits it, and only its key waits.
func testRetries(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	for _, err := range []error{errors.New("of unknown kind"), driver.ErrNotSent} {
		accept := refuse(&sink, err, "slow/1")
		stop := serve(t, relay(t, db, &sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1}), grant(1))
		add(t, db, append(keyed("slow", 1, 3), driver.Message{ID: "alone", Topic: "t"})...)
		testbed.Eventually(t, "the message without a key is delivered", bound, func() bool { return slices.Contains(firsts(sink.Messages()), "alone") })
		waiting(t, db, 1, func(w outbox.Waiting) bool { return w.Why == outbox.WhyRetry && w.Attempts > 2 && w.ID == "slow/1" })
		accept()
		inOrder(t, "slow", delivered(t, &sink, 4), 3)
		empty(t, db)
		_ = stop()
		sink = memory.Sink{}
	}
}

// testDeadLetters: a rejected message becomes a dead letter after its attempts, its key continues,
// and a replay delivers it under its id, in order.
func testDeadLetters(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, poison("never"), "k/2", "k/4")
	serve(t, relay(t, db, &sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 2}), grant(1))
	add(t, db, keyed("k", 1, 5)...)
	delivered(t, &sink, 3)
	testbed.Eventually(t, "two letters are dead", bound, func() bool { return status(t, db).Dead == 2 })
	empty(t, db)
	var letters []outbox.DeadLetter
	do := func(fn func(ctx context.Context, sql driver.SQL) error) error { return db.Try(t.Context(), fn) }
	ok(t, do(func(ctx context.Context, sql driver.SQL) (err error) {
		letters, err = box.DeadLetters(ctx, sql, outbox.DeadLetterQuery{Topic: "t", Key: "k"})
		return err
	}))
	if len(letters) != 2 || letters[0].ID != "k/2" || letters[1].ID != "k/4" || letters[0].Attempts != 2 || letters[0].Payload != nil ||
		letters[0].LastError != "publish: never" || letters[0].Died.Before(letters[0].Added) {
		t.Fatalf("%+v", letters)
	}
	ok(t, do(func(ctx context.Context, sql driver.SQL) error {
		l, err := box.DeadLetter(ctx, sql, "k/4")
		if string(l.Payload) != "4" || l.Place != letters[1].Place {
			t.Errorf("%+v", l)
		}
		rest, err2 := box.DeadLetters(ctx, sql, outbox.DeadLetterQuery{After: letters[0].Place, Limit: 5})
		if len(rest) != 1 || rest[0].ID != "k/4" {
			t.Errorf("%+v", rest)
		}
		return errors.Join(err, err2)
	}))
	var order *outbox.OrderError
	err := do(func(ctx context.Context, sql driver.SQL) error {
		return box.Replay(ctx, sql, []string{"k/4"}, "fixed", "bob")
	})
	if wantKind(t, err, interlock.Definite); !errors.As(err, &order) || order.Earlier != "k/2" {
		t.Errorf("out of order: %v", err)
	}
	accept()
	replay(t, db, "k/4", "k/2", "k/4")
	if ids := delivered(t, &sink, 5); !slices.Equal(ids, []string{"k/1", "k/3", "k/5", "k/2", "k/4"}) {
		t.Errorf("delivered %v", ids)
	}
	empty(t, db)
	if n := count(t, db, `interlock_outbox_audit where action = 'replay' and reason = 'fixed' and done_by = 'bob'`); n != 2 {
		t.Errorf("%d records", n)
	}
	if status(t, db).Dead != 0 {
		t.Error("they are still dead letters")
	}
}

// testParkedBehindADeadLetter: with Park, no message of the key passes a dead letter.
func testParkedBehindADeadLetter(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, poison("never"), "k/2", "gone/1")
	serve(t, relay(t, db, &sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1, AfterDeadLetter: outbox.Park, Batch: 5}), grant(1))
	add(t, db, slices.Concat(keyed("k", 1, 130), keyed("gone", 1, 2), keyed("free", 1, 20))...)
	inOrder(t, "free", delivered(t, &sink, 21), 20)
	waiting(t, db, 2, func(w outbox.Waiting) bool {
		return w.Why == outbox.WhyDead && w.Until.IsZero() && (w.Messages == 128 || w.Messages == 1)
	})
	add(t, db, keyed("k", 131, 140)...)
	add(t, db, keyed("free", 21, 22)...)
	delivered(t, &sink, 23)
	accept()
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return errors.Join(box.Replay(ctx, sql, []string{"k/2"}, "fixed", "bob"), box.Discard(ctx, sql, []string{"gone/1"}, "of no use", "bob"))
	})
	ids := delivered(t, &sink, 23+139+1)
	inOrder(t, "k", ids, 140)
	if got := of("gone", ids); !slices.Equal(got, []string{"gone/2"}) {
		t.Errorf("of the discarded one's key came %v", got)
	}
	empty(t, db)
	if n := count(t, db, `interlock_outbox_audit where action = 'discard' and message_id = 'gone/1' and topic = 't' and msg_key = 'gone'`); n != 1 {
		t.Errorf("%d records", n)
	}
}

// testByHand: an operator frees a blocked key by MakeDeadLetter, or retries it at once.
func testByHand(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, poison("never"), "k/1", "slow/1")
	serve(t, relay(t, db, &sink, outbox.Options{MinPause: time.Millisecond, MaxPause: time.Hour}), grant(1))
	add(t, db, slices.Concat(keyed("k", 1, 3), keyed("slow", 1, 2))...)
	waiting(t, db, 2, func(w outbox.Waiting) bool { return w.Messages > 1 })
	bury(t, db, "k/1")
	delivered(t, &sink, 2)
	accept()
	db.Do(t, func(ctx context.Context, sql driver.SQL) error { return box.Retry(ctx, sql, "slow/1") })
	inOrder(t, "slow", delivered(t, &sink, 4), 2)
	empty(t, db)
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		l, err := box.DeadLetter(ctx, sql, "k/1")
		if l.LastError != "buried by bob: why" || l.Attempts != 1 {
			t.Errorf("%+v", l)
		}
		return err
	})
	tx := db.Begun(t, driver.SessionIsolation)
	_, err := box.DeadLetter(t.Context(), tx, "k/2")
	var missing *outbox.NotFoundError
	for _, err := range []error{err, box.MakeDeadLetter(t.Context(), tx, "k/1", "why", "bob"), box.MakeDeadLetter(t.Context(), tx, "other", "why", "bob"),
		box.Retry(t.Context(), tx, "slow/1"), box.Discard(t.Context(), tx, []string{"k/1", "k/2"}, "a", "b")} {
		if wantKind(t, err, interlock.Definite); !errors.As(err, &missing) {
			t.Errorf("%v", err)
		}
	}
	for _, blank := range [][2]string{{" ", "bob"}, {"why", ""}} {
		wantKind(t, box.Replay(t.Context(), tx, []string{"k/1"}, blank[0], blank[1]), interlock.Bug)
	}
	ok(t, tx.Rollback(t.Context()))
	if status(t, db).Dead != 1 {
		t.Error("a refused call changed something")
	}
}

// testDelayed: a delayed message makes only its own key wait.
func testDelayed(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	due := time.Now().Add(5 * time.Second) // the others are delivered before, also on a busy machine
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return box.AddAt(ctx, sql, due, append(keyed("late", 1, 2), driver.Message{ID: "alone", Topic: "t"})...)
	})
	add(t, db, slices.Concat(keyed("late", 3, 4), keyed("now", 1, 2))...)
	inOrder(t, "now", delivered(t, &sink, 2), 2)
	waiting(t, db, 2, func(w outbox.Waiting) bool { return w.Why == outbox.WhyDelayed && !w.Until.IsZero() })
	if ids := delivered(t, &sink, 3); time.Now().Before(due) {
		t.Errorf("%v came %v too early", ids, time.Until(due))
	}
	inOrder(t, "late", delivered(t, &sink, 7), 4)
	empty(t, db)
}

// TestIdleCost: an idle relay sends one statement each MaxPoll, for any number of slices, and those
// of each slice once in sixty MaxPoll; also during a call of the sink.
func TestIdleCost(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, messages := range map[string]int{"nothing waits": 0, "a message is under way": 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testIdleCost(t, open(t), messages)
			})
		}
	})
}

func testIdleCost(t *testing.T, db *databases.DB, messages int) {
	const (
		slices  = outbox.DefaultSlices
		each    = 3 // statements of one read of a service
		maxPoll = 10 * time.Millisecond
	)
	db.Do(t, anyNumber.Create)
	add(t, db, keyed("k", 1, messages)...)
	c := &databases.Counted{BeginnerAt: db}
	var calls atomic.Int64
	sink := outbox.Func(func(ctx context.Context, _ driver.Message) error {
		calls.Add(1)
		<-ctx.Done()
		return ctx.Err()
	})
	r, err := outbox.NewRelay(c, anyNumber, sink, &outbox.Options{MaxPoll: maxPoll, Drain: time.Millisecond})
	ok(t, err)
	serve(t, r, grant(1))
	testbed.Eventually(t, "each slice is served, and looks are rare", bound, func() bool {
		return count(t, db, `interlock_outbox_fence`) == slices && calls.Load() == int64(messages) && c.Begun.Load() > 100
	})
	began, before := time.Now(), c.Statements.Load()
	testbed.Eventually(t, "polls continue", bound, func() bool { return c.Statements.Load() > before+30 })
	statements, polls := c.Statements.Load()-before, int64(time.Since(began)/maxPoll)+1
	// One running poll, and the reads of the services: each once in sixty polls.
	if most := 1 + polls + each*slices*(1+polls/60); statements > most {
		t.Errorf("%d statements in %d times MaxPoll, want %d at most", statements, polls, most)
	}
	if c.Commits.Load() > slices+1 { // to enter, and to trim the audit
		t.Errorf("%d commits", c.Commits.Load())
	}
}

// testFreedWhileIdle: a waiting relay finds within MaxPoll that an operator freed a key.
func testFreedWhileIdle(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var refused atomic.Int64
	sink.Refuse(func(driver.Message) error {
		if refused.Add(1) == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	add(t, db, keyed("k", 1, 1)...)
	serve(t, relay(t, db, &sink, outbox.Options{MinPause: time.Hour, MaxPause: time.Hour, MaxPoll: bound / 30}), grant(1))
	testbed.Eventually(t, "the key waits", bound, func() bool { return count(t, db, `interlock_outbox_lane`) == 1 })
	db.Do(t, func(ctx context.Context, sql driver.SQL) error { return box.Retry(ctx, sql, "k/1") })
	delivered(t, &sink, 1)
	empty(t, db)
}
