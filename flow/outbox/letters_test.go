package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testDiesTwice: a message that becomes a dead letter, is added again and dies again is a second
// letter: it neither stops its slice nor is lost.
func testDiesTwice(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, poison("never"), "k/1")
	serve(t, relay(t, db, &sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1}), grant(1))
	for i, payload := range []string{"first", "second"} {
		add(t, db, driver.Message{ID: "k/1", Topic: "t", Key: "k", Payload: []byte(payload)})
		testbed.Eventually(t, "it is dead", bound, func() bool { return status(t, db).Dead == int64(i+1) })
	}
	add(t, db, keyed("k", 2, 2)...)
	delivered(t, &sink, 1)
	accept()
	for i, payload := range []string{"first", "second"} {
		db.Do(t, func(ctx context.Context, sql driver.SQL) error {
			l, err := box.DeadLetter(ctx, sql, "k/1")
			if string(l.Payload) != payload {
				t.Errorf("letter %q, want the oldest", l.Payload)
			}
			return errors.Join(err, box.Replay(ctx, sql, []string{"k/1", "k/1"}, "fixed", "bob"))
		})
		testbed.Eventually(t, "it is delivered", bound, func() bool { return len(sink.Messages()) == i+2 })
		if m := sink.Messages()[i+1]; m.ID != "k/1" || string(m.Payload) != payload {
			t.Errorf("%s came with %q, want %q", m.ID, m.Payload, payload)
		}
		empty(t, db)
	}
	if n := status(t, db).Dead; n != 0 {
		t.Errorf("%d are dead", n)
	}
}

// testReplayBeforeDelayed: a replayed letter does not wait for a later, delayed message.
func testReplayBeforeDelayed(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, poison("never"), "k/1")
	serve(t, relay(t, db, &sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1}), grant(1))
	add(t, db, keyed("k", 1, 1)...)
	testbed.Eventually(t, "it is dead", bound, func() bool { return status(t, db).Dead == 1 })
	addLater(t, db, keyed("k", 2, 2)...)
	later := func(w outbox.Waiting) bool { return w.Why == outbox.WhyDelayed && w.ID == "k/2" }
	waiting(t, db, 1, later)
	accept()
	replay(t, db, "k/1")
	if ids := delivered(t, &sink, 1); ids[0] != "k/1" {
		t.Errorf("%v came", ids)
	}
	waiting(t, db, 1, later)
}

// meanwhile runs a function after the first query.
type meanwhile struct {
	driver.SQL
	do func()
}

func (m meanwhile) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	err := m.SQL.Query(ctx, query, args, each)
	m.do()
	return err
}

// testBuryTooLate: a message that is delivered at the same time does not become a dead letter.
func testBuryTooLate(t *testing.T, db *databases.DB) {
	add(t, db, keyed("k", 1, 1)...)
	err := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error {
		deliver := sync.OnceFunc(func() { db.Exec(t, `delete from interlock_outbox`) })
		return box.MakeDeadLetter(ctx, meanwhile{sql, deliver}, "k/1", "why", "bob")
	})
	var missing *outbox.NotFoundError
	if wantKind(t, err, interlock.Definite); !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
	if n := count(t, db, `interlock_outbox_audit`); n != 0 {
		t.Errorf("%d records", n)
	}
}

// testRetryWaitsForNobody: Retry does not wait for the locked key of another message.
func testRetryWaitsForNobody(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	refuse(&sink, errors.New("not now"), "a/1", "b/1")
	stop := serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	add(t, db, slices.Concat(keyed("a", 1, 1), keyed("b", 1, 1))...)
	waiting(t, db, 2, func(w outbox.Waiting) bool { return w.Why == outbox.WhyRetry })
	_ = stop()
	lane := databases.One[int64](t, db, `select lane from interlock_outbox_lane where message_id = 'a/1'`)
	relay := db.Begun(t, driver.ReadCommitted)
	_, err := databases.Value[int64](t.Context(), relay, fmt.Sprintf(`select 1 from interlock_outbox_lane where lane = %d for update`, lane))
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	ok(t, db.Try(ctx, func(ctx context.Context, sql driver.SQL) error { return box.Retry(ctx, sql, "b/1") }))
	ok(t, relay.Rollback(t.Context()))
}

// testClockSetBack: times stored by a clock that was an hour ahead make no key wait for longer than
// a pause, and no age is negative.
func testClockSetBack(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	accept := refuse(&sink, errors.New("not now"), "a/1", "b/1", "c/1")
	stop := serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	add(t, db, slices.Concat(keyed("a", 1, 2), keyed("b", 1, 2), keyed("c", 1, 2))...)
	addLater(t, db, keyed("late", 1, 1)...)
	waiting(t, db, 4, func(w outbox.Waiting) bool { return w.Why != outbox.WhyRetry || w.Messages == 2 })
	_ = stop()
	db.Exec(t, `update interlock_outbox set added = added + 3600000000`)
	db.Exec(t, `update interlock_outbox_lane set since = since + 3600000000`)
	db.Exec(t, `update interlock_outbox_lane set wait_until = wait_until + 3600000000 where msg_key <> 'late'`)
	db.Exec(t, `update interlock_outbox_lane set why = 'queued', attempts = 0, head = 0 where msg_key = 'b'`)
	db.Exec(t, `update interlock_outbox_lane set why = 'blocked' where msg_key = 'c'`)
	if s := status(t, db); s.Oldest < 0 || slices.ContainsFunc(s.Slices, func(s outbox.SliceStatus) bool { return s.Oldest < 0 }) {
		t.Errorf("%+v", s)
	}
	accept()
	serve(t, relay(t, db, &sink, outbox.Options{Hooks: publishedAge(t)}), grant(2))
	ids := delivered(t, &sink, 6)
	for _, key := range []string{"a", "b", "c"} {
		inOrder(t, key, ids, 2)
	}
	waiting(t, db, 1, func(w outbox.Waiting) bool { return w.Why == outbox.WhyDelayed && w.Key == "late" })
}

// testBuriedMeanwhile: a message that a relay parks while an operator frees its key does not wait
// forever.
func testBuriedMeanwhile(t *testing.T, db *databases.DB) {
	setSlices(t, db, 1)
	var took memory.Sink
	var once sync.Once
	arrived, goOn := make(chan struct{}), make(chan struct{})
	sink := outbox.Func(func(ctx context.Context, m driver.Message) error {
		switch m.ID {
		case "k/1":
			return poison("never")
		case "other":
			once.Do(func() { close(arrived); <-goOn })
		}
		return took.Publish(ctx, []driver.Message{m})[0]
	})
	r, err := outbox.NewRelay(db, anyNumber, sink, &outbox.Options{MinPause: time.Hour, MaxPause: time.Hour, MaxPoll: 20 * time.Millisecond})
	ok(t, err)
	serve(t, r, grant(1))
	add(t, db, keyed("k", 1, 1)...)
	testbed.Eventually(t, "the key waits", bound, func() bool { return count(t, db, `interlock_outbox_lane`) == 1 })

	add(t, db, append(keyed("k", 2, 2), driver.Message{ID: "other", Topic: "t"})...)
	select {
	case <-arrived: // the relay has decided that the key of k/2 waits, and has not stored it yet
	case <-time.After(bound):
		t.Fatal("the other message is not delivered")
	}
	bury(t, db, "k/1")
	close(goOn)
	testbed.Eventually(t, "the later messages are delivered", bound, func() bool {
		return slices.ContainsFunc(took.Messages(), func(m driver.Message) bool { return m.ID == "k/2" })
	})
	empty(t, db)
}

// testDiscardedMeanwhile: a key does not wait for a dead letter that an operator has made and discarded
// while the relay was sending the message.
func testDiscardedMeanwhile(t *testing.T, db *databases.DB) {
	var took memory.Sink
	var once sync.Once
	arrived, goOn := make(chan struct{}), make(chan struct{})
	sink := outbox.Func(func(ctx context.Context, m driver.Message) error {
		if m.ID == "k/1" {
			once.Do(func() { close(arrived); <-goOn })
			return poison("never")
		}
		return took.Publish(ctx, []driver.Message{m})[0]
	})
	serve(t, relay(t, db, sink, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1, AfterDeadLetter: outbox.Park}), grant(1))
	add(t, db, keyed("k", 1, 2)...)
	select {
	case <-arrived:
	case <-time.After(bound):
		t.Fatal("the message is not sent")
	}
	bury(t, db, "k/1")
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return box.Discard(ctx, sql, []string{"k/1"}, "obsolete", "bob")
	})
	close(goOn)
	add(t, db, keyed("k", 3, 3)...)
	if ids := delivered(t, &took, 2); !slices.Equal(ids, []string{"k/2", "k/3"}) {
		t.Errorf("%v came", ids)
	}
	empty(t, db)
}

// testAuditIsTrimmed: the relay deletes old audit records and keeps the others.
func testAuditIsTrimmed(t *testing.T, db *databases.DB) {
	add(t, db, keyed("k", 1, 3)...)
	bury(t, db, "k/1", "k/2", "k/3")
	before := count(t, db, `interlock_outbox_audit`)
	db.Exec(t, `update interlock_outbox_audit set done_at = done_at - 7200000000 where message_id <> 'k/3'`)
	young := count(t, db, `interlock_outbox_audit where message_id = 'k/3'`)
	if before <= young || young == 0 {
		t.Fatalf("%d records, %d young ones", before, young)
	}
	var sink memory.Sink
	serve(t, relay(t, db, &sink, outbox.Options{KeepAudit: time.Hour}), grant(1))
	testbed.Eventually(t, "old records go", bound, func() bool { return count(t, db, `interlock_outbox_audit`) == young })
}
