package outbox_test

import (
	"context"
	"errors"
	"fmt"
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

// anyNumber does not set the number of slices, so it follows changes.
var anyNumber = outbox.Table{}

// setSlices changes the number of slices, and checks that everything is in its slice.
func setSlices(t *testing.T, db *databases.DB, n int) (moved int64) {
	t.Helper()
	moved, err := outbox.SetSlices(t.Context(), db, anyNumber, outbox.SliceChange{Slices: n, Reason: "test", By: "tester"})
	ok(t, err)
	inSlices(t, db, n)
	return moved
}

// inSlices checks that a table has a number of slices, and that every row is in its slice.
func inSlices(t *testing.T, db *databases.DB, n int) {
	t.Helper()
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		l, err := anyNumber.Layout(ctx, sql)
		if l.Slices != n || l.Changing {
			t.Errorf("%+v, want %d slices", l, n)
		}
		return err
	})
	for _, table := range []string{``, `_lane`, `_dead`} {
		if wrong := count(t, db, fmt.Sprintf(`interlock_outbox%s where slice <> mod((lane >> 1) & 9223372036854775807, %d)`, table, n)); wrong != 0 {
			t.Errorf("%d rows of interlock_outbox%s are in a wrong slice of %d", wrong, table, n)
		}
	}
}

// anyRelay returns a relay that follows changes.
func anyRelay(t *testing.T, db driver.Beginner[driver.SQL], sink driver.Sink, o outbox.Options) *outbox.Relay {
	t.Helper()
	o.MinPause, o.MaxPause, o.MaxPoll = 5*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
	r, err := outbox.NewRelay(pool(db), anyNumber, sink, &o)
	ok(t, err)
	return r
}

// testSetSlices changes the number of slices from 4 to 9 and back to 2 while messages are
// added, rejected and delivered: nothing is lost and keys keep their order.
func testSetSlices(t *testing.T, db *databases.DB) {
	setSlices(t, db, 4)
	var sink memory.Sink
	var turn atomic.Int64
	sink.Refuse(func(driver.Message) error { // some answers are lost, so that keys wait
		if turn.Add(1)%11 == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	serve(t, anyRelay(t, db, &sink, outbox.Options{Batch: 3}), grant(1))
	var adding sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	h := &history{keys: map[string][]string{}}
	for p := range 3 {
		adding.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				m := []driver.Message{{ID: fmt.Sprintf("%d/%d", p, n), Topic: "t", Key: fmt.Sprint("key", (p+n)%7)}}
				if err := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error {
					if err := anyNumber.Add(ctx, sql, m...); err != nil {
						return err
					}
					h.enter(m)
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	more := func() { delivered(t, &sink, len(firsts(sink.Messages()))+50) }
	for _, n := range []int{9, 2} {
		more()
		setSlices(t, db, n)
	}
	more()
	stop()
	adding.Wait()
	delivered(t, &sink, h.total())
	empty(t, db)
	h.judge(t, sink.Messages())
	if n := count(t, db, `interlock_outbox_audit where action = 'slices' and done_by = 'tester' and reason = 'test'`); n != 6 {
		t.Errorf("%d records of three changes", n)
	}
}

// testSlicesWaitForWriters: a change moves the messages of transactions that were open when it
// began.
func testSlicesWaitForWriters(t *testing.T, db *databases.DB) {
	writer := db.Begun(t, driver.SessionIsolation)
	ok(t, anyNumber.Add(t.Context(), writer, keyed("a", 1, 1)...))
	_, err := outbox.SetSlices(t.Context(), db, anyNumber, outbox.SliceChange{Slices: 9, Reason: "test", By: "tester", Wait: time.Millisecond})
	wantKind(t, err, interlock.Retryable)
	ended := make(chan error, 1)
	go func() {
		_, err := outbox.SetSlices(t.Context(), db, anyNumber, outbox.SliceChange{Slices: 9, Reason: "test", By: "tester"})
		ended <- err
	}()
	blocked(t, db)
	ok(t, anyNumber.Add(t.Context(), writer, keyed("b", 1, 5)...)) // does not wait
	ok(t, writer.Commit(t.Context()))
	ok(t, within(t, ended))
	inSlices(t, db, 9)
	if n := count(t, db, `interlock_outbox`); n != 6 {
		t.Errorf("%d messages", n)
	}
}

// cutOff fails the n-th statement or commit, as if the process had died there.
type cutOff struct {
	driver.BeginnerAt[driver.SQL]
	left *atomic.Int64
}

var errCut = &interlock.Error{Op: "run", Kind: interlock.Definite, Err: errors.New("cut off")}

func (c cutOff) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return c.BeginAt(ctx, driver.ReadCommitted)
}

func (c cutOff) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	return cutTx{tx, c.left}, err
}

type cutTx struct {
	driver.Tx[driver.SQL]
	left *atomic.Int64
}

func (c cutTx) Native() driver.SQL { return c }

func (c cutTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if c.left.Add(-1) < 0 {
		return 0, errCut
	}
	return c.Tx.Exec(ctx, query, args...)
}

func (c cutTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	if c.left.Add(-1) < 0 {
		return errCut
	}
	return c.Tx.Query(ctx, query, args, each)
}

func (c cutTx) Commit(ctx context.Context) error {
	if c.left.Add(-1) < 0 {
		return errors.Join(errCut, c.Tx.Rollback(ctx))
	}
	return c.Tx.Commit(ctx)
}

// testSlicesInterrupted: the next change completes an interrupted one, also with another
// number; meanwhile no relay sends anything, and messages are added.
func testSlicesInterrupted(t *testing.T, db *databases.DB) {
	add(t, db, keyed("dead", 1, 1)...)
	bury(t, db, "dead/1")
	messages, changing := 0, 0
	for point := int64(0); ; point++ {
		n := []int{9, 2, 5}[point%3]
		var added []driver.Message
		for k := range 10 {
			messages++
			added = append(added, keyed(fmt.Sprint("k", k), messages, messages)...)
		}
		add(t, db, added...)
		left := new(atomic.Int64)
		left.Store(point)
		_, err := outbox.SetSlices(t.Context(), cutOff{db, left}, anyNumber, outbox.SliceChange{Slices: n, Reason: "test", By: "tester"})
		if err == nil {
			inSlices(t, db, n)
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		db.Do(t, func(ctx context.Context, sql driver.SQL) error {
			l, err := anyNumber.Layout(ctx, sql)
			if l.Changing {
				changing++
				_, err = anyNumber.Status(ctx, sql)
			}
			return err
		})
		if changing == 3 {
			relaysWait(t, db)
			if changing++; t.Failed() {
				return
			}
		}
		if point%2 == 0 {
			n = 3 // another number
		}
		setSlices(t, db, n)
	}
	if changing < 5 {
		t.Errorf("only %d changes were under way when they ended", changing)
	}
	var sink memory.Sink
	replay(t, db, "dead/1")
	serve(t, anyRelay(t, db, &sink, outbox.Options{}), grant(2))
	delivered(t, &sink, messages+1)
	empty(t, db)
}

// relaysWait: a relay that starts during a change sends nothing and reports the reason.
func relaysWait(t *testing.T, db *databases.DB) {
	t.Helper()
	var sink memory.Sink
	waits := make(chan error, 100)
	r := anyRelay(t, db, &sink, outbox.Options{Hooks: &observe.Outbox{Trouble: func(e observe.OutboxTrouble) {
		select {
		case waits <- e.Err:
		default:
		}
	}}})
	_, err := r.Slices(t.Context())
	wantKind(t, err, interlock.Retryable)
	stop := serve(t, r, grant(1))
	for range 3 {
		if err := within(t, waits); !strings.Contains(err.Error(), "being changed") {
			t.Error(err)
		}
	}
	if _ = stop(); len(sink.Messages()) != 0 {
		t.Errorf("%d messages were sent during a change", len(sink.Messages()))
	}
}

// testSlicesOldSnapshot: a transaction that has read the database before a change does
// not add messages by the former number after it.
func testSlicesOldSnapshot(t *testing.T, db *databases.DB) {
	writer := db.Begun(t, driver.RepeatableRead)
	_, err := databases.Value[int64](t.Context(), writer, `select count(*) from interlock_outbox_layout`)
	ok(t, err)
	setSlices(t, db, 9)
	err = anyNumber.Add(t.Context(), writer, keyed("a", 1, 9)...)
	if err == nil {
		ok(t, writer.Commit(t.Context()))
	} else {
		wantKind(t, err, interlock.Retryable)
		ok(t, writer.Rollback(t.Context()))
	}
	inSlices(t, db, 9)
}

// testSlicesOldRelay: a relay with a running batch while the number changes, and changes back,
// stores nothing of it; a relay for a fixed number ends.
func testSlicesOldRelay(t *testing.T, db *databases.DB) {
	setSlices(t, db, 1)
	add(t, db, keyed("k", 1, 3)...)
	var sink memory.Sink
	old := &gate{&sink, make(chan struct{}, 9), make(chan struct{})}
	serve(t, anyRelay(t, db, old, outbox.Options{}), grant(1))
	ended := make(chan error, 1)
	<-old.entered
	setSlices(t, db, 2)
	setSlices(t, db, 1)
	close(old.open)
	testbed.Eventually(t, "all is sent again", bound, func() bool { return len(sink.Messages()) == 6 })
	empty(t, db)
	inOrder(t, "k", firsts(sink.Messages()), 3)

	go func() { ended <- anyRelay(t, db, &sink, outbox.Options{}).RunOf(t.Context(), grant(2), 0, 1) }()
	testbed.Eventually(t, "the slice is served", bound, func() bool {
		return count(t, db, `interlock_outbox_fence where source = 'owner of `+fmt.Sprint(grant(2).Token())+`'`) == 1
	})
	setSlices(t, db, 2)
	var layout *outbox.LayoutError
	if err := within(t, ended); !errors.As(err, &layout) || layout.Stored != 2 || layout.Want != 1 {
		t.Errorf("a relay of one slice ended with %v", err)
	}
	// A table with the former number is rejected, also in a running relay.
	go func() { ended <- relay(t, db, &sink, outbox.Options{}).RunAll(t.Context(), grant(3)) }()
	testbed.Eventually(t, "both slices are served", bound, func() bool {
		return count(t, db, `interlock_outbox_fence where source = 'owner of `+fmt.Sprint(grant(3).Token())+`'`) == 2
	})
	setSlices(t, db, 1)
	former := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, keyed("k", 4, 4)...) })
	for what, err := range map[string]error{"a relay": within(t, ended), "a writer": former} {
		if !errors.As(err, &layout) || layout.Stored != 1 || layout.Want != 2 {
			t.Errorf("%s of two slices: %v", what, err)
		}
	}
}

// haltable has no running transaction while it is locked.
type haltable struct {
	driver.BeginnerAt[driver.SQL]
	*sync.RWMutex
}

func (h haltable) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	h.RLock()
	tx, err := h.BeginnerAt.BeginAt(ctx, level)
	if err != nil {
		h.RUnlock()
		return nil, err
	}
	return halting{tx, sync.OnceFunc(h.RUnlock)}, nil
}

// halting is a transaction that keeps a haltable from being locked.
type halting struct {
	driver.Tx[driver.SQL]
	over func()
}

func (h halting) Commit(ctx context.Context) error {
	defer h.over()
	return h.Tx.Commit(ctx)
}

func (h halting) Rollback(ctx context.Context) error {
	defer h.over()
	return h.Tx.Rollback(ctx)
}

// testSlicesMidway: a relay serves a slice and reads it in the middle of a change, where it
// lacks the first messages of a key. It sends none of that key.
func testSlicesMidway(t *testing.T, db *databases.DB) {
	setSlices(t, db, 1)
	var sink memory.Sink
	var waits atomic.Bool
	h := haltable{db, new(sync.RWMutex)}
	serve(t, anyRelay(t, h, &sink, outbox.Options{Hooks: &observe.Outbox{Trouble: func(e observe.OutboxTrouble) {
		if strings.Contains(e.Err.Error(), "being changed") {
			waits.Store(true)
		}
	}}}), grant(1))
	testbed.Eventually(t, "the slice is served", bound, func() bool { return count(t, db, `interlock_outbox_fence`) == 1 })
	h.Lock()
	key := ""
	for i := 0; key == "" || count(t, db, `interlock_outbox where mod((lane >> 1) & 9223372036854775807, 2) = 1`) == 0; i++ {
		key = fmt.Sprint("k", i)
		add(t, db, keyed(key, 1, 1)...)
	}
	add(t, db, keyed(key, 2, 1500)...)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := outbox.SetSlices(ctx, db, anyNumber, outbox.SliceChange{Slices: 2, Reason: "test", By: "tester", Progress: func(int64) { cancel() }})
	h.Unlock()
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := count(t, db, `interlock_outbox where slice = 1`); n != 1000 {
		t.Fatalf("%d messages were moved before the change was interrupted", n)
	}
	testbed.Eventually(t, "the relay waits", bound, waits.Load)
	if n := len(sink.Messages()); n != 0 {
		t.Errorf("%d messages were sent during the change", n)
	}
	setSlices(t, db, 2)
	empty(t, db)
	inOrder(t, key, firsts(sink.Messages()), 1500)
}

// testSlicesRefused: invalid arguments are rejected before any request.
func testSlicesRefused(t *testing.T, db *databases.DB) {
	c := &databases.Counted{BeginnerAt: db}
	for _, change := range []outbox.SliceChange{{Reason: "r", By: "b"}, {Slices: outbox.MaxSlices + 1, Reason: "r", By: "b"},
		{Slices: 1, By: "b"}, {Slices: 1, Reason: "r", By: " "}, {Slices: 1, Reason: "r", By: "b", Wait: -1}} {
		_, err := outbox.SetSlices(t.Context(), c, anyNumber, change)
		wantKind(t, err, interlock.Bug)
	}
	if n := c.Statements.Load(); n != 0 {
		t.Errorf("%d statements", n)
	}
	_, err := outbox.SetSlices[driver.SQL](t.Context(), nil, anyNumber, outbox.SliceChange{Slices: 1, Reason: "r", By: "b"})
	wantKind(t, err, interlock.Bug)
	// The present number is no change.
	if moved := setSlices(t, db, box.Slices); moved != 0 || count(t, db, `interlock_outbox_audit`) != 0 {
		t.Errorf("%d rows were moved", moved)
	}
}
