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
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// publishedAge returns hooks that check ages.
func publishedAge(t *testing.T) *observe.Outbox {
	return &observe.Outbox{Published: func(e observe.OutboxPublished) {
		if e.Oldest < 0 {
			t.Errorf("a message is %v old", e.Oldest)
		}
	}}
}

// widest records the most rows that a query returned.
type widest struct {
	*databases.DB
	rows *atomic.Int64
}

func (w widest) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := w.DB.Begin(ctx)
	return widestTx{tx, w.rows}, err
}

func (w widest) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := w.DB.BeginAt(ctx, level)
	return widestTx{tx, w.rows}, err
}

type widestTx struct {
	driver.Tx[driver.SQL]
	rows *atomic.Int64
}

func (t widestTx) Native() driver.SQL { return t }
func (t widestTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	var n int64
	err := t.Tx.Query(ctx, query, args, func(scan func(...any) error) error { n++; return each(scan) })
	for most := t.rows.Load(); n > most && !t.rows.CompareAndSwap(most, n); most = t.rows.Load() {
	}
	return err
}

// testReadsAreBounded: a read returns at most a batch of keys with long queues, however many of
// them continue at once.
func testReadsAreBounded(t *testing.T, db *databases.DB) {
	const keys, each, batch = 30, 12, 25
	var all []driver.Message
	for k := range keys {
		all = append(all, keyed(fmt.Sprint("key", k), 1, each)...)
	}
	add(t, db, all...)
	db.Exec(t, `update interlock_outbox set parked = true`)
	db.Exec(t, `insert into interlock_outbox_lane (lane, slice, topic, msg_key, message_id, head, why, attempts, last_error, since, wait_until)
		select distinct lane, slice, topic, msg_key, message_id, 0, 'queued', 0, 'x', 0, 0 from interlock_outbox where message_id like '%/1'`)
	var sink memory.Sink
	var rows atomic.Int64
	serve(t, relay(t, widest{db, &rows}, &sink, outbox.Options{Batch: batch}), grant(1))
	ids := delivered(t, &sink, len(all))
	for k := range keys {
		inOrder(t, fmt.Sprint("key", k), ids, each)
	}
	empty(t, db)
	if n := rows.Load(); n > batch {
		t.Errorf("a query gave %d rows, for batches of %d", n, batch)
	}
}

// testLongQueue: what a settlement reads does not depend on how many messages of a key wait.
func testLongQueue(t *testing.T, db *databases.DB) {
	if db.Dialect != driver.Postgres {
		t.Skip("only PostgreSQL counts the entries that a transaction reads")
	}
	const queue = 4000
	add(t, db, keyed("k", 1, queue)...)
	db.Exec(t, `update interlock_outbox set parked = true`)
	db.Exec(t, `insert into interlock_outbox_lane (lane, slice, topic, msg_key, message_id, head, why, attempts, last_error, since, wait_until)
		select lane, slice, topic, msg_key, message_id, 0, 'queued', 0, 'x', 0, 0 from interlock_outbox where message_id = 'k/1'`)
	var sink memory.Sink
	refuse(&sink, poison("never"), "k/201") // entries of deleted messages are read as well, for a while
	var most atomic.Int64
	stop := serve(t, relay(t, indexed{db, &most}, &sink, outbox.Options{}), grant(1))
	inOrder(t, "k", delivered(t, &sink, 200), 200)
	_ = stop()
	if n := most.Load(); n == 0 || n > queue/4 {
		t.Errorf("a transaction read %d entries of an index of %d", n, queue)
	}
}

// indexed records the most entries of the index of parked messages that a transaction read.
type indexed struct {
	*databases.DB
	most *atomic.Int64
}

func (i indexed) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return i.BeginAt(ctx, driver.SessionIsolation)
}

func (i indexed) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := i.DB.BeginAt(ctx, level)
	if err != nil {
		return nil, err
	}
	t := indexedTx{tx, i.most, 0}
	t.before, err = t.read(ctx)
	return t, err
}

type indexedTx struct {
	driver.Tx[driver.SQL]
	most   *atomic.Int64
	before int64
}

// read returns how many entries the session has read, as far as it has not reported them yet.
func (t indexedTx) read(ctx context.Context) (int64, error) {
	return databases.Value[int64](ctx, t.Tx, `select pg_stat_get_xact_tuples_returned('interlock_outbox_parked'::regclass)`)
}

func (t indexedTx) Commit(ctx context.Context) error {
	n, err := t.read(ctx)
	if err != nil {
		return errors.Join(err, t.Tx.Rollback(ctx))
	}
	n -= t.before
	for most := t.most.Load(); n > most && !t.most.CompareAndSwap(most, n); most = t.most.Load() {
	}
	return t.Tx.Commit(ctx)
}

// testFirstRead: a relay that starts with a queue of the largest messages reads few of them at a time.
func testFirstRead(t *testing.T, db *databases.DB) {
	setSlices(t, db, 1)
	const queue = 24
	large := keyed("k", 1, queue)
	for i := range large {
		large[i].Payload = make([]byte, outbox.MaxPayload)
	}
	add(t, db, large...)
	var sink memory.Sink
	var rows atomic.Int64
	r, err := outbox.NewRelay(widest{db, &rows}, anyNumber, &sink, &outbox.Options{Batch: queue})
	ok(t, err)
	serve(t, r, grant(1))
	inOrder(t, "k", delivered(t, &sink, queue), queue)
	if n := rows.Load(); n < 8 || n > 18 { // with two of the layout
		t.Errorf("a read returned %d rows of a MiB", n)
	}
}

// testHeadersFill: headers count towards the size of a statement.
func testHeadersFill(t *testing.T, db *databases.DB) {
	var messages []driver.Message
	for i := range 700 {
		messages = append(messages, driver.Message{ID: fmt.Sprint(i), Topic: "t", Headers: map[string]string{"x": strings.Repeat("'", outbox.MaxHeaders-10)}})
	}
	add(t, db, messages...)
	if n := count(t, db, `interlock_outbox`); n != 700 {
		t.Errorf("%d rows", n)
	}
}

// absent is a database that is unreachable for some transactions.
type absent struct {
	*databases.DB
	left *atomic.Int64
}

func (a absent) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	if a.left.Add(-1) >= 0 {
		return nil, &interlock.Error{Op: "begin", Kind: interlock.Retryable, Err: errors.New("away")}
	}
	return a.DB.BeginAt(ctx, level)
}

// testAwayAtFirst: a relay waits for an unreachable database from its first read on.
func testAwayAtFirst(t *testing.T, db *databases.DB) {
	add(t, db, keyed("k", 1, 1)...)
	var sink memory.Sink
	var left, troubles atomic.Int64
	left.Store(3)
	hooks := &observe.Outbox{Trouble: func(e observe.OutboxTrouble) {
		if troubles.Add(1); e.Slice != -1 {
			t.Errorf("%+v", e)
		}
	}}
	stop := serve(t, relay(t, absent{db, &left}, &sink, outbox.Options{Hooks: hooks}), grant(1))
	delivered(t, &sink, 1)
	if _ = stop(); troubles.Load() != 3 {
		t.Errorf("%d failures are reported", troubles.Load())
	}
	left.Store(1 << 40)
	stop = serve(t, relay(t, absent{db, &left}, &sink, outbox.Options{}), grant(2))
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	over := grant(3)
	over.Renew(0)
	if err := relay(t, absent{db, &left}, &sink, outbox.Options{}).RunAll(t.Context(), over); !errors.Is(err, interlock.ErrExpired) {
		t.Errorf("the claim expired: %v", err)
	}
}

// testEndsEntering: a relay without running work ends at once, even if a former owner's transaction
// conflicts.
func testEndsEntering(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	stop := serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	add(t, db, slices.Concat(keyed("a", 1, 1), keyed("b", 1, 1), keyed("c", 1, 1), keyed("d", 1, 1))...)
	delivered(t, &sink, 4)
	empty(t, db)
	_ = stop()
	former := db.Begun(t, driver.SessionIsolation)
	_, err := databases.Value[int64](t.Context(), former, `select 1 from interlock_outbox_fence where resource = 'interlock_outbox/0' for update`)
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	r := relay(t, db, &sink, outbox.Options{Drain: time.Minute})
	go func() { ended <- r.Run(ctx, grant(2), 0) }()
	blocked(t, db)
	cancel()
	if err := within(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	ok(t, former.Rollback(t.Context()))
}
