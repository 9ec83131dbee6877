package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

const bound = 30 * time.Second

// TestInTx runs the tests of one handler transaction on every database.
func TestInTx(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range map[string]func(*testing.T, *databases.DB){
			"effects happen once": testEffectsOnce, "a zombie has no effect": testZombie, "operate": testOperate, "an open transaction blocks nobody": testOpenAdd,
			"groups without messages are deleted": testTrim,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, created(t, open(t)))
			})
		}
	})
}

// eachDB runs a test on new tables of each database.
func eachDB(t *testing.T, test func(t *testing.T, db *databases.DB), clients ...string) {
	t.Helper()
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		test(t, created(t, open(t)))
	}, clients...)
}

// created creates tables in a database, with one for effects.
func created(t *testing.T, db *databases.DB) *databases.DB {
	t.Helper()
	db.Do(t, table.Create)
	db.Exec(t, `create table effect (id varchar(64) not null)`)
	return db
}

// wantEffects requires one effect of each of n messages.
func wantEffects(t *testing.T, db *databases.DB, n int64) {
	t.Helper()
	total, distinct := databases.One[int64](t, db, `select count(*) from effect`), databases.One[int64](t, db, `select count(distinct id) from effect`)
	if total != n || distinct != n {
		t.Errorf("%d effects of %d messages, want %d", total, distinct, n)
	}
}

// allHandled waits until the queue is empty.
func allHandled(t *testing.T, db *databases.DB) {
	t.Helper()
	testbed.Eventually(t, "all messages are handled", bound, func() bool {
		return databases.One[int64](t, db, `select count(*) from interlock_queue`) == 0
	})
}

func addIn(t *testing.T, db *databases.DB, messages ...queue.Message) {
	t.Helper()
	db.Do(t, func(ctx context.Context, sql driver.SQL) error { return table.Add(ctx, sql, "q", messages...) })
}

func effect(ctx context.Context, tx driver.SQL, m queue.Received) error {
	_, err := tx.Exec(ctx, `insert into effect (id) values ('`+m.ID+`')`)
	return err
}

// testEffectsOnce has consumers that fail after their effect, or lose the answer of their commit.
func testEffectsOnce(t *testing.T, db *databases.DB) {
	const keys, each = 4, 10
	for k := range keys {
		for n := range each {
			addIn(t, db, queue.Message{ID: fmt.Sprintf("%d-%d", k, n), Key: fmt.Sprint(k)})
		}
	}
	var calls atomic.Int64
	in := queue.InTx(db, func(ctx context.Context, tx driver.SQL, m queue.Received) error {
		if err := effect(ctx, tx, m); err != nil {
			return err
		}
		if calls.Add(1)%5 == 0 {
			return errors.New("it fails after its effect")
		}
		return nil
	})
	handler := func(ctx context.Context, m queue.Received) error {
		err := in(ctx, m)
		if err == nil && calls.Load()%7 == 0 { // the answer is lost
			return &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("no answer")}
		}
		return err
	}
	for range 2 {
		c := consume(t, queue.FromTable(db, table, nil), handler, queue.Options{})
		t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	}
	allHandled(t, db)
	wantEffects(t, db, keys*each)
}

// testZombie: a consumer that has lost its lease cannot finish a message.
func testZombie(t *testing.T, db *databases.DB) {
	addIn(t, db, queue.Message{ID: "1", Key: "k"})
	q := queue.FromTable(db, table, nil)
	limit := driver.QueueLimit{Messages: 1, Bytes: 1}
	one, err := q.Join(t.Context(), "q", driver.QueueOptions{Lease: time.Second})
	ok(t, err)
	was, err := one.Receive(t.Context(), limit)
	ok(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_ = one.Close(gone) // it leaves its lease to expire
	two, err := q.Join(t.Context(), "q", driver.QueueOptions{})
	ok(t, err)
	is, err := two.Receive(t.Context(), limit)
	ok(t, err)
	finish := queue.InTx(db, effect)
	if err := finish(t.Context(), *was[0]); !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("the zombie finished: %v", err)
	}
	ok(t, finish(t.Context(), *is[0]))
	if err := finish(t.Context(), *is[0]); !errors.Is(err, interlock.ErrLost) {
		t.Errorf("finished twice: %v", err)
	}
	wantEffects(t, db, 1)
	ok(t, two.Settle(t.Context(), []driver.Settlement{{Received: is[0], Outcome: driver.Ack}})[0])
	ok(t, two.Close(t.Context()))
}

// testOperate shows queues, and edits and discards dead letters.
func testOperate(t *testing.T, db *databases.DB) {
	addIn(t, db, queue.Message{ID: "1", Key: "k", Payload: []byte("bad")}, queue.Message{ID: "2", Key: "k"}, queue.Message{ID: "3", Key: "p"})
	c := consume(t, queue.FromTable(db, table, nil), func(_ context.Context, m queue.Received) error {
		if m.Key == "k" && string(m.Payload) != "good" {
			return queue.Dead(errors.New("it is bad"))
		}
		return queue.Park(errors.New("it waits"))
	}, queue.Options{})
	var all []queue.Status
	show := func(want queue.Status) {
		t.Helper()
		testbed.Eventually(t, "the queue is shown", bound, func() bool {
			db.Do(t, func(ctx context.Context, sql driver.SQL) (err error) { all, err = table.Status(ctx, sql); return err })
			if len(all) == 1 {
				all[0].OldestMicros = 0
			}
			return len(all) == 1 && all[0] == want
		})
	}
	show(queue.Status{Queue: "q", Messages: 1, Dead: 2, Parked: 1})
	letters := inDB{db: db}.letters(t, "q")
	if len(letters) != 2 || letters[0].LastError != "it is bad" || letters[0].Attempts != 1 || string(letters[0].Payload) != "bad" {
		t.Fatalf("%+v", letters)
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		if err := table.Edit(ctx, sql, "q", by, letters[0].Place, []byte("good")); err != nil {
			return err
		}
		if err := table.Discard(ctx, sql, "q", by, letters[1].Place); err != nil {
			return err
		}
		return table.Replay(ctx, sql, "q", by, letters[0].Place, letters[0].Place)
	})
	show(queue.Status{Queue: "q", Messages: 2, Parked: 2})
	tx := db.Begun(t, driver.SessionIsolation)
	for _, err := range []error{table.Replay(t.Context(), tx, "q", by, 99), table.Discard(t.Context(), tx, "q", by, 99), table.Edit(t.Context(), tx, "q", by, 99, nil),
		table.Resume(t.Context(), tx, "q", by, "no")} {
		if interlock.Kind(err) != interlock.Definite || !errors.Is(err, queue.ErrNotFound) {
			t.Errorf("of what is not there: %v", err)
		}
	}
	for _, blank := range []queue.By{{Actor: "alice", Reason: " "}, {Reason: "why"}} {
		for _, err := range []error{table.Replay(t.Context(), tx, "q", blank, 1), table.Discard(t.Context(), tx, "q", blank, 1), table.Edit(t.Context(), tx, "q", blank, 1, nil),
			table.Resume(t.Context(), tx, "q", blank, "k")} {
			if interlock.Kind(err) != interlock.Bug {
				t.Errorf("by %+v: %v", blank, err)
			}
		}
	}
	ok(t, tx.Rollback(t.Context()))
	if n := databases.One[int64](t, db, `select count(*) from interlock_queue_audit where done_by = 'alice'`); n != 3 {
		t.Errorf("%d records in the audit, want those of edit, discard and replay", n)
	}
	ok(t, c.Close(t.Context()))
}

// testOpenAdd: consumers continue a key while a transaction that adds to it is open. Its message is
// handled after those committed before.
func testOpenAdd(t *testing.T, db *databases.DB) {
	addIn(t, db, queue.Message{ID: "1", Key: "k"})
	tx := db.Begun(t, driver.SessionIsolation)
	ok(t, table.Add(t.Context(), tx, "q", queue.Message{ID: "2", Key: "k"}))
	var r record
	c := consume(t, queue.FromTable(db, table, nil), func(_ context.Context, m queue.Received) error { r.add(m.ID); return nil }, queue.Options{})
	allHandled(t, db)
	ok(t, tx.Commit(t.Context()))
	testbed.Eventually(t, "the second message is handled", bound, func() bool { return len(r.of("2")) == 1 })
	ok(t, c.Close(t.Context()))
}

// testTrim: a group stays while its token may be needed, and not for ever.
func testTrim(t *testing.T, db *databases.DB) {
	groups := `select count(*) from interlock_queue_group`
	run := func() (stop func()) {
		c := consume(t, queue.FromTable(db, table, nil), func(context.Context, queue.Received) error { return nil }, queue.Options{})
		return func() { ok(t, c.Close(t.Context())) }
	}
	addIn(t, db, queue.Message{ID: "1", Key: "k"}, queue.Message{ID: "2"})
	stop := run()
	allHandled(t, db)
	stop()
	if n := databases.One[int64](t, db, groups); n != 1 {
		t.Errorf("%d groups, want that of the key", n)
	}
	db.Exec(t, `update interlock_queue_group set token = 1`) // as if it were of 2020
	db.Exec(t, `insert into interlock_queue_audit (action, queue, place, message_id, msg_key, reason, done_by, done_at) values ('edit', 'q', 1, 'm', 'k', 'r', 'me', 1)`)
	stop = run()
	testbed.Eventually(t, "the group and the old record are deleted", bound, func() bool {
		return databases.One[int64](t, db, groups)+databases.One[int64](t, db, `select count(*) from interlock_queue_audit`) == 0
	})
	stop()
}
