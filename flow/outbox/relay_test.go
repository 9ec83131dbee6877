package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// testCosts: an Add is one statement (on MariaDB one more for keys), and a batch of the relay is
// one commit with few statements.
func testCosts(t *testing.T, db *databases.DB) {
	c := &databases.Counted{BeginnerAt: db}
	cost := func(messages ...driver.Message) int64 {
		c.Reset()
		ok(t, outbox.Tx(t.Context(), c, nil, func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, messages...) }))
		return c.Statements.Load()
	}
	lock := int64(0)
	if db.Dialect == driver.MariaDB {
		lock = 1
	}
	if n := cost(slices.Concat(keyed("a", 1, 300), keyed("b", 1, 300))...); n != 1+lock {
		t.Errorf("600 messages of two keys took %d statements", n)
	}
	if n := cost(driver.Message{Topic: "t"}, driver.Message{Topic: "t"}); n != 1 {
		t.Errorf("messages without a key took %d statements", n)
	}
	if n := cost(keyed("c", 1, 2500)...); n != 3+lock {
		t.Errorf("2500 messages took %d statements", n)
	}
	const total = 3102
	var sink memory.Sink
	var batches atomic.Int64
	c = &databases.Counted{BeginnerAt: db}
	stop := serve(t, relay(t, c, &sink, outbox.Options{Batch: 100, Hooks: &observe.Outbox{Published: func(observe.OutboxPublished) { batches.Add(1) }}}), grant(1))
	delivered(t, &sink, total)
	empty(t, db)
	_ = stop() // now all batches are reported
	n := batches.Load()
	if most := int64(total/100 + 4*box.Slices); n > most {
		t.Errorf("%d batches, want %d at most", n, most)
	}
	// One to enter each slice, one to trim the audit, and one for each batch.
	if got := c.Commits.Load(); got != n+int64(box.Slices)+1 {
		t.Errorf("%d commits for %d batches", got, n)
	}
	perBatch := float64(c.Committed.Load()) / float64(n+int64(box.Slices))
	t.Logf("%d batches, %d commits, %.1f statements in each", n, c.Commits.Load(), perBatch)
	if perBatch > 5 { // enter, delete, two reads; Bound is not counted
		t.Errorf("%.1f statements in each transaction", perBatch)
	}
}

// autocommitting also counts requests without a transaction around them.
type autocommitting struct {
	*databases.Counted
	driver.Autocommitter
}

func (a autocommitting) Autocommit(level driver.Isolation) driver.SQL {
	return a.SQL(a.Autocommitter.Autocommit(level))
}

// testCostOfAMessage: a relay that is woken asks by one statement which slices have messages, and reads
// those of one slice by another. On PostgreSQL each is one request.
func testCostOfAMessage(t *testing.T, db *databases.DB) {
	c := &databases.Counted{BeginnerAt: db}
	var beginner driver.Beginner[driver.SQL] = c
	a, single := db.BeginnerAt.(driver.Autocommitter)
	if single {
		beginner = autocommitting{c, a}
	}
	if single != (db.Client == databases.Pgx) {
		t.Errorf("single statements in one request: %v", single)
	}
	db.Do(t, anyNumber.Create)
	var sink memory.Sink
	r, err := outbox.NewRelay(beginner, anyNumber, &sink, &outbox.Options{MinPoll: time.Hour, MaxPoll: time.Hour, KeepAudit: -1})
	ok(t, err)
	serve(t, r, grant(1))
	const messages = 20
	deliver := func(i int) {
		add(t, db, keyed(fmt.Sprint("k", i), 1, 1)...)
		r.Wake()
		delivered(t, &sink, i+1)
		empty(t, db)
	}
	deliver(0)
	c.Reset()
	for i := range messages {
		deliver(i + 1)
	}
	// The two; to settle, it bounds the transaction, enters, and compares the layout, deletes, and reads;
	// before it waits it reads again, and once more if it was woken meanwhile.
	if n := c.Statements.Load(); n > messages*9+4*outbox.DefaultSlices {
		t.Errorf("%d statements for %d messages, want 9 each at most", n, messages)
	}
	if n := c.Begun.Load(); single && n > messages+1 {
		t.Errorf("%d transactions for %d messages", n, messages)
	}
}

// gate is a sink whose calls wait.
type gate struct {
	driver.Sink
	entered chan struct{}
	open    chan struct{}
}

func (g *gate) Publish(ctx context.Context, m []driver.Message) []error {
	g.entered <- struct{}{}
	<-g.open
	return g.Sink.Publish(ctx, m)
}

// unhurried is a slow sink that accepts nothing if its call ends meanwhile.
type unhurried struct{ driver.Sink }

func (u unhurried) Publish(ctx context.Context, m []driver.Message) []error {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return u.Sink.Publish(ctx, m)
}

// within returns the error, if it arrives in time.
func within(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(bound):
		t.Fatalf("still running after %v", bound)
		return nil
	}
}

// testOvertaken: an owner that is overtaken while the sink has its batch deletes nothing, and
// returns the reason.
func testOvertaken(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	old := &gate{&sink, make(chan struct{}, 9), make(chan struct{})}
	add(t, db, keyed("k", 1, 3)...)
	slice := int(databases.One[int64](t, db, `select min(slice) from interlock_outbox`))
	ended := make(chan error, 1)
	former := relay(t, db, old, outbox.Options{})
	go func() { ended <- former.Run(t.Context(), grant(1), slice) }()
	<-old.entered

	stop := serve(t, relay(t, db, &sink, outbox.Options{}), grant(2))
	inOrder(t, "k", delivered(t, &sink, 3), 3)
	empty(t, db)
	_ = stop()
	// The same rows again, as after a replay: the former owner still tries to delete them.
	add(t, db, keyed("k", 1, 3)...)
	db.Exec(t, `update interlock_outbox set id = id - 3`)
	close(old.open)
	var stale *interlock.StaleTokenError
	if err := within(t, ended); !errors.As(err, &stale) || stale.Got != grant(1).Token() || stale.Seen != grant(2).Token() {
		t.Errorf("the former owner ended with %v", err)
	}
	if n := count(t, db, `interlock_outbox`); n != 3 {
		t.Errorf("%d of 3 rows are left", n)
	}
}

// inDo is a claim whose context is that of a lock's Do, which also ends with the caller's.
type inDo struct {
	*claim
	ctx context.Context
}

func (d inDo) Context() context.Context { return d.ctx }

// testEnds: a relay ends with its claim or context, returns the cause, and lets the sink finish its
// running call.
func testEnds(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	run := func(ctx context.Context, r *outbox.Relay, c interlock.Claim) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, c, 0) }()
		return ended
	}
	lost := grant(1)
	ended := run(t.Context(), relay(t, db, &sink, outbox.Options{}), lost)
	lost.End(interlock.ErrLost)
	if err := within(t, ended); !errors.Is(err, interlock.ErrLost) {
		t.Errorf("the claim was lost: %v", err)
	}
	expired := grant(2)
	ended = run(t.Context(), relay(t, db, &sink, outbox.Options{}), expired)
	expired.Renew(0)
	if err := within(t, ended); !errors.Is(err, interlock.ErrExpired) {
		t.Errorf("the claim expired: %v", err)
	}
	add(t, db, slices.Concat(keyed("a", 1, 3), keyed("b", 1, 3), keyed("c", 1, 3), keyed("d", 1, 3))...)
	patient := &gate{unhurried{&sink}, make(chan struct{}, 9), make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended = run(ctx, relay(t, db, patient, outbox.Options{}), inDo{grant(3), ctx})
	<-patient.entered
	why := errors.New("told to end")
	cancel(why)
	close(patient.open)
	if err := within(t, ended); !errors.Is(err, why) {
		t.Errorf("ended with %v", err)
	}
	if n := count(t, db, `interlock_outbox where slice = 0`); n != 0 || len(sink.Messages()) == 0 {
		t.Errorf("%d messages left, %d delivered", n, len(sink.Messages()))
	}
}

// testStuckSink: a call of the sink without an answer is cancelled, and its messages are sent again
// with the same ids.
func testStuckSink(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var stuck atomic.Int64
	sometimes := outbox.Func(func(ctx context.Context, m driver.Message) error {
		if m.ID == "k/2" && stuck.Add(1) <= 2 {
			<-ctx.Done()
			if stuck.Load() == 2 { // it did arrive
				sink.Publish(context.Background(), []driver.Message{m})
			}
			return ctx.Err()
		}
		return sink.Publish(ctx, []driver.Message{m})[0]
	})
	serve(t, relay(t, db, sometimes, outbox.Options{Publish: 150 * time.Millisecond, Poison: outbox.ToDeadLetters, Attempts: 1}), grant(1))
	add(t, db, keyed("k", 1, 3)...)
	testbed.Eventually(t, "the last one is delivered", bound, func() bool { return slices.Contains(firsts(sink.Messages()), "k/3") })
	empty(t, db)
	inOrder(t, "k", firsts(sink.Messages()), 3)
	if n := len(sink.Messages()); n != 4 {
		t.Errorf("%d deliveries, want one twice", n)
	}
}

// testSinkAway: while the sink delivers nothing, the relay at first stores no failures of messages.
func testSinkAway(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var paused, failed atomic.Int64
	back := make(chan struct{})
	sink.Refuse(func(driver.Message) error {
		select {
		case <-back:
			return nil
		default:
			return errors.New("away")
		}
	})
	add(t, db, slices.Concat(keyed("a", 1, 5), keyed("b", 1, 5), keyed("c", 1, 5), keyed("d", 1, 5), keyed("e", 1, 5), keyed("f", 1, 5))...)
	serve(t, relay(t, db, &sink, outbox.Options{MinPause: time.Second, MaxPause: time.Second, Hooks: &observe.Outbox{
		Paused: func(e observe.OutboxPaused) {
			if paused.Add(1) == int64(box.Slices) {
				close(back)
			}
		},
		Failed: func(observe.OutboxFailed) { failed.Add(1) },
	}}), grant(1))
	ids := delivered(t, &sink, 30)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		inOrder(t, key, ids, 5)
	}
	empty(t, db)
	if paused.Load() == 0 || failed.Load() > 0 {
		t.Errorf("paused %d times, %d messages were blamed", paused.Load(), failed.Load())
	}
}

// busy is an error that requests a pause.
type busy struct{ error }

func (busy) RetryAfter() time.Duration { return time.Minute }

// testPauseRequested: if the sink delivers nothing and requests a pause, no message is sent again before its end.
func testPauseRequested(t *testing.T, db *databases.DB) {
	var failed atomic.Int64
	sink := outbox.Func(func(context.Context, driver.Message) error { return busy{errors.New("busy")} })
	serve(t, relay(t, db, sink, outbox.Options{MinPause: time.Millisecond, MaxPause: time.Hour, Hooks: &observe.Outbox{
		Paused: func(e observe.OutboxPaused) { t.Errorf("all messages are sent again after %v", e.For) },
		Failed: func(e observe.OutboxFailed) {
			if failed.Add(1); e.Pause != time.Minute {
				t.Errorf("%s is sent again after %v", e.ID, e.Pause)
			}
		},
	}}), grant(1))
	add(t, db, slices.Concat(keyed("a", 1, 1), keyed("b", 1, 1), keyed("c", 1, 1))...) // two of them are in one slice
	testbed.Eventually(t, "all have failed", bound, func() bool { return failed.Load() == 3 })
}

// testBlockingHooks: hooks that block delay no message.
func testBlockingHooks(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	unblock := make(chan struct{})
	defer close(unblock)
	serve(t, relay(t, db, &sink, outbox.Options{Hooks: &observe.Outbox{
		Serving:   func(observe.OutboxServing) { <-unblock },
		Published: func(observe.OutboxPublished) { <-unblock },
	}}), grant(1))
	add(t, db, keyed("k", 1, 10)...)
	delivered(t, &sink, 10)
	empty(t, db)
}

// testWakes: a notification after the commit is faster than a poll.
func testWakes(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var notifier memory.Notifier
	r := relay(t, db, &sink, outbox.Options{Notifier: &notifier, MinPoll: time.Hour, MaxPoll: time.Hour})
	serve(t, r, grant(1))
	looked := count(t, db, `interlock_outbox_fence`)
	testbed.Eventually(t, "both slices are served", bound, func() bool {
		looked = count(t, db, `interlock_outbox_fence`)
		return looked == int64(box.Slices)
	})
	for i := range 5 {
		ok(t, outbox.Tx(t.Context(), db, &notifier, func(ctx context.Context, sql driver.SQL) error {
			return box.Add(ctx, sql, keyed("k", i+1, i+1)...)
		}))
		delivered(t, &sink, i+1)
	}
	add(t, db, keyed("k", 6, 6)...)
	r.Wake()
	inOrder(t, "k", delivered(t, &sink, 6), 6)
	empty(t, db)
	boom := errors.New("boom")
	var notified calls
	err := outbox.Tx(t.Context(), db, &notified, func(ctx context.Context, sql driver.SQL) error {
		return errors.Join(box.Add(ctx, sql, keyed("k", 7, 7)...), boom)
	})
	if !errors.Is(err, boom) || count(t, db, `interlock_outbox`) != 0 || notified != 0 {
		t.Errorf("a failed function's messages are kept, or the notifier was called %d times: %v", notified, err)
	}
}

// calls counts.
type calls int

func (r *calls) Notify(...string)           { *r++ }
func (r *calls) Listen(func(string)) func() { return func() {} }

// testLayouts: every call with another number of slices is rejected.
func testLayouts(t *testing.T, db *databases.DB) {
	other := outbox.Table{Slices: 3}
	r, err := outbox.NewRelay(db, other, &memory.Sink{}, nil)
	ok(t, err)
	absent := outbox.Table{Name: "absent"}
	elsewhere, err := outbox.NewRelay(db, absent, &memory.Sink{}, nil)
	ok(t, err)
	message := driver.Message{Topic: "t"}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	add := func(table outbox.Table) error {
		return db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return table.Add(ctx, sql, message) })
	}
	for what, err := range map[string]error{
		"run":     r.Run(t.Context(), grant(1), 0),
		"run all": r.RunAll(t.Context(), grant(1)),
		"add":     add(other),
		"create":  db.Try(t.Context(), other.Create),
		"a slice": relay(t, db, &memory.Sink{}, outbox.Options{}).Run(t.Context(), grant(1), 2),
		// Groups of claim/partition with fewer partitions, and with more.
		"too few":  relay(t, db, &memory.Sink{}, outbox.Options{}).RunOf(ctx, grant(1), 0, 1),
		"too many": relay(t, db, &memory.Sink{}, outbox.Options{}).RunOf(ctx, grant(1), 1, 3),
	} {
		var layout *outbox.LayoutError
		if wantKind(t, err, interlock.Definite); !errors.As(err, &layout) || layout.Stored != 2 {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"run": elsewhere.Run(t.Context(), grant(1), 0), "add": add(absent)} {
		if wantKind(t, err, interlock.Definite); err == nil || !strings.Contains(err.Error(), "--only outbox") {
			t.Errorf("%s: %v", what, err)
		}
	}
	ok(t, add(outbox.Table{})) // names none
	ok(t, db.Try(t.Context(), outbox.Table{}.Create))
	_, noSink := outbox.NewRelay(db, box, nil, nil)
	_, noDB := outbox.NewRelay[driver.SQL](nil, box, &memory.Sink{}, nil)
	for _, err := range []error{r.Run(t.Context(), grant(1), -1), r.RunOf(t.Context(), grant(1), 3, 3), r.RunOf(t.Context(), grant(1), -1, 3),
		r.Run(t.Context(), nil, 0), r.RunAll(t.Context(), nil), noSink, noDB} {
		wantKind(t, err, interlock.Bug)
	}
	db.Exec(t, `delete from interlock_outbox_layout`)
	wantKind(t, add(outbox.Table{}), interlock.Definite)
	if n := count(t, db, `interlock_outbox`); n != 1 {
		t.Errorf("%d messages", n)
	}
}

// testBadMessages: an invalid message is rejected before anything is sent.
func testBadMessages(t *testing.T, db *databases.DB) {
	c := &databases.Counted{BeginnerAt: db}
	long := strings.Repeat("x", 1000)
	good := driver.Message{ID: "good", Topic: "t", Key: "k"}
	for i, m := range []driver.Message{{}, {Topic: long}, {Topic: "t", Key: long}, {Topic: "t", ID: long}, {Topic: "a\x00"}, {Topic: "t", Key: "\xff"},
		{Topic: "t", ID: "\x00"}, {Topic: "t", ID: "order.7"}, {Topic: "t", ID: " a"}, {Topic: "t", Payload: make([]byte, outbox.MaxPayload+1)}, {Topic: "t", Headers: map[string]string{"": "x"}},
		{Topic: "t", Headers: map[string]string{"a": "\x00"}}, {Topic: "t", Headers: map[string]string{"\xff": "a"}},
		{Topic: "t", Headers: map[string]string{"a": strings.Repeat("x", outbox.MaxHeaders)}}} {
		err := outbox.Tx(t.Context(), c, nil, func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, good, m) })
		var bad *outbox.MessageError
		if wantKind(t, err, interlock.Definite); !errors.As(err, &bad) || bad.Index != 1 || bad.Why == "" {
			t.Errorf("%d: %v", i, err)
		}
	}
	err := outbox.Tx(t.Context(), c, nil, func(ctx context.Context, sql driver.SQL) error {
		return box.AddAt(ctx, sql, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), good)
	})
	if wantKind(t, err, interlock.Definite); c.Statements.Load() != 0 {
		t.Errorf("%d statements were sent", c.Statements.Load())
	}
	ok(t, db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql) }))
	wantKind(t, box.Add(t.Context(), nil, good), interlock.Bug)
	for _, twice := range [][]driver.Message{{good, good}, {good}} {
		err := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, twice...) })
		var duplicate *outbox.DuplicateError
		if len(twice) == 1 {
			ok(t, err)
			err = db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, good) })
		}
		if wantKind(t, err, interlock.Definite); !errors.As(err, &duplicate) {
			t.Errorf("%v", err)
		}
	}
	over := db.Begun(t, driver.SessionIsolation)
	ok(t, over.Rollback(t.Context()))
	wantKind(t, box.Add(t.Context(), over, good), interlock.Definite)
}

// testTogether: relays share the slices, and exchange them while messages arrive.
func testTogether(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var adding sync.WaitGroup
	adding.Go(func() {
		for i := 1; i <= 60; i++ {
			err := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error {
				return box.Add(ctx, sql, slices.Concat(keyed("a", i, i), keyed("b", i, i), keyed("c", i, i), keyed("d", i, i))...)
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for n := 1; n <= 8; n++ { // each overtakes the previous one, which does not notice
		stop := serve(t, relay(t, db, &sink, outbox.Options{Batch: 3}), grant(n))
		delivered(t, &sink, 20*n)
		defer func() { _ = stop() }()
	}
	adding.Wait()
	ids := delivered(t, &sink, 240)
	for _, key := range []string{"a", "b", "c", "d"} {
		inOrder(t, key, ids, 60)
	}
	empty(t, db)
	t.Log(fmt.Sprint(len(sink.Messages())-240, " of 240 messages were delivered twice"))
}
