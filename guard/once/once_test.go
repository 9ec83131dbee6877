package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

func TestInbox(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, w world)
	}{
		{"a duplicate has no effect", testDuplicate},
		{"another payload is no duplicate", testMismatch},
		{"a duplicate waits and is skipped", testWaitsAndSkips},
		{"a duplicate runs if the first rolls back", testWaitsAndRuns},
		{"many deliverers make one effect", testManyDeliverers},
		{"optimists both run and one commits", testOptimists},
		{"many optimists make one effect", testManyOptimists},
		{"what is seen at each level", testLevels},
		{"a record without its effect cannot be committed", testSpoiled},
		{"a failed effect leaves no record", testFailedEffect},
		{"an effect's error comes back as it is", testOwnError},
		{"names are data", testNames},
		{"bad input is reported and nothing is lost", testBadInput},
		{"hooks are called", testHooks},
		{"what a delivery costs", testCosts},
		{"a batch tells what is new", testBatch},
		{"large batches are cut", testLargeBatch},
		{"batches in any order block but do not deadlock", testBatchesInAnyOrder},
		{"half a batch cannot be committed", testHalfABatch},
		{"what a batch costs", testBatchCosts},
		{"numbers are followed", testSequence},
		{"a sequence begins where it is set", testSkip},
		{"many deliverers follow one sequence", testManyFollow},
		{"a number that waits for the one before", testFollowWaits},
		{"optimists follow a sequence", testOptimisticSequence},
		{"what a number costs", testSequenceCosts},
	}
	worlds(t, func(t *testing.T, open func(testing.TB) world) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, open(t))
			})
		}
	})
}

func testDuplicate(t *testing.T, w world) {
	for i, wanted := range []once.Outcome{once.Done, once.Duplicate, once.Duplicate} {
		outcome, err := w.deliver(t.Context(), message(1))
		if want(t, outcome, err, wanted); t.Failed() {
			t.Fatalf("delivery %d", i)
		}
	}
	w.wantEffects(t, "m1", 1)
	outcome, err := w.deliver(t.Context(), message(2))
	want(t, outcome, err, once.Done)
	other := w
	other.inbox.Consumer = "shipping" // has no record of it
	outcome, err = other.deliver(t.Context(), message(1))
	want(t, outcome, err, once.Done)
	w.wantEffects(t, "m1", 2)
	w.Do(t, func(ctx context.Context, db driver.SQL) error { // twice in one transaction
		for _, wanted := range []once.Outcome{once.Done, once.Duplicate} {
			outcome, err := w.inbox.Once(ctx, db, message(3), func(ctx context.Context) error { return effect("m3")(ctx, db) })
			want(t, outcome, err, wanted)
		}
		return nil
	})
	w.wantEffects(t, "m3", 1)
}

func testMismatch(t *testing.T, w world) {
	outcome, err := w.deliver(t.Context(), message(1))
	want(t, outcome, err, once.Done)
	for _, optimistic := range []bool{false, true} {
		w.inbox.Optimistic = optimistic
		other := once.Message{ID: "m1", Payload: []byte("another")}
		outcome, err = w.deliver(t.Context(), other)
		var mismatch *once.MismatchError
		if wantKind(t, err, interlock.Definite, nil); outcome != once.Mismatched || !errors.As(err, &mismatch) ||
			*mismatch != (once.MismatchError{Consumer: "billing", Message: "m1"}) {
			t.Errorf("%v, %v", outcome, err)
		}
		outcome, err = w.deliver(t.Context(), message(1)) // the record is unchanged
		want(t, outcome, err, once.Duplicate)
	}
	// The caller may choose the compared hash.
	chosen := once.Message{ID: "m2", Payload: []byte("at 10:00"), Hash: []byte(strings.Repeat("h", 32))}
	outcome, err = w.deliver(t.Context(), chosen)
	want(t, outcome, err, once.Done)
	chosen.Payload = []byte("at 10:01")
	outcome, err = w.deliver(t.Context(), chosen)
	want(t, outcome, err, once.Duplicate)
	w.wantEffects(t, "m1", 1)
}

// first delivers m in a transaction that waits inside the effect until end is called.
func (w world) first(t *testing.T, m once.Message) (end func(error) answer) {
	t.Helper()
	inside, how := make(chan struct{}), make(chan error, 1)
	wait := later(t, func() (once.Outcome, error) {
		return once.Tx(context.WithoutCancel(t.Context()), w.DB, w.inbox, m, func(ctx context.Context, tx driver.SQL) error {
			if err := effect(m.ID)(ctx, tx); err != nil {
				return err
			}
			close(inside)
			return <-how
		})
	})
	testbed.Receive(t, inside, "the begin of the effect")
	ended := false
	end = func(err error) answer {
		ended = true
		how <- err
		return wait()
	}
	t.Cleanup(func() {
		if !ended {
			end(errors.New("the test is over"))
		}
	})
	return end
}

func testWaitsAndSkips(t *testing.T, w world) {
	end := w.first(t, message(1))
	second := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), message(1)) })
	w.wantWaiting(t, 1)
	a := end(nil)
	want(t, a.outcome, a.err, once.Done)
	a = second()
	want(t, a.outcome, a.err, once.Duplicate)
	w.wantEffects(t, "m1", 1)
}

func testWaitsAndRuns(t *testing.T, w world) {
	end := w.first(t, message(1))
	second := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), message(1)) })
	w.wantWaiting(t, 1)
	own := errors.New("no money")
	if a := end(own); a.outcome != once.Undone || a.err != own {
		t.Errorf("%+v, want the effect's own error", a)
	}
	a := second()
	want(t, a.outcome, a.err, once.Done)
	w.wantEffects(t, "m1", 1)
}

// persist delivers until it gets an outcome, as a broker does.
func (w world) persist(ctx context.Context, m once.Message, runs *atomic.Int64) (once.Outcome, error) {
	for range 200 {
		outcome, err := once.Tx(ctx, w.DB, w.inbox, m, func(ctx context.Context, tx driver.SQL) error {
			runs.Add(1)
			return effect(m.ID)(ctx, tx)
		})
		if err == nil || interlock.Kind(err) != interlock.Retryable {
			return outcome, err
		}
	}
	return once.Undone, errors.New("no outcome after 200 deliveries")
}

// race runs 16 deliverers for each of several messages, and returns how often an effect began.
func (w world) race(t *testing.T, messages int) int64 {
	var running sync.WaitGroup
	var done, runs atomic.Int64
	for range 16 {
		running.Go(func() {
			for n := range messages {
				switch outcome, err := w.persist(t.Context(), message(n), &runs); {
				case err != nil:
					t.Error(err)
				case outcome == once.Done:
					done.Add(1)
				}
			}
		})
	}
	running.Wait()
	for n := range messages {
		w.wantEffects(t, message(n).ID, 1)
	}
	if done.Load() != int64(messages) {
		t.Errorf("%d deliveries were answered that they did it, of %d messages", done.Load(), messages)
	}
	return runs.Load()
}

func testManyDeliverers(t *testing.T, w world) {
	const messages = 15
	if runs := w.race(t, messages); runs != messages {
		t.Errorf("%d runs of %d messages: a duplicate did not wait", runs, messages)
	}
}

func testManyOptimists(t *testing.T, w world) {
	w.inbox.Optimistic = true
	t.Logf("%d runs of 15 messages", w.race(t, 15))
}

func testOptimists(t *testing.T, w world) {
	w.inbox.Optimistic = true
	end := w.first(t, message(1))
	outcome, err := w.deliver(t.Context(), message(1)) // does not wait
	want(t, outcome, err, once.Done)
	a := end(nil)
	if wantKind(t, a.err, interlock.Retryable, nil); a.outcome != once.Undone {
		t.Errorf("%v", a.outcome)
	}
	w.wantEffects(t, "m1", 1)
	outcome, err = w.deliver(t.Context(), message(1))
	want(t, outcome, err, once.Duplicate)
}

// testLevels: a transaction that has read before the first one committed.
func testLevels(t *testing.T, w world) {
	w.Exec(t, `create table account (id varchar(9) primary key)`)
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable} {
		m := message(i)
		tx := w.Begun(t, level)
		_, err := databases.Value[int64](t.Context(), tx, `select count(*) from account`)
		ok(t, err)
		outcome, err := w.deliver(t.Context(), m)
		want(t, outcome, err, once.Done)
		outcome, err = w.inbox.Once(t.Context(), tx, m, func(context.Context) error {
			t.Error("ran again")
			return nil
		})
		if w.Dialect == driver.Postgres && level != driver.ReadCommitted {
			wantKind(t, err, interlock.Retryable, nil)
		} else {
			want(t, outcome, err, once.Duplicate)
		}
		_ = tx.Rollback(t.Context())
		w.wantEffects(t, m.ID, 1)
	}
	if w.Dialect == driver.MariaDB {
		tx := w.Begun(t, driver.RepeatableRead)
		_, err := tx.Exec(t.Context(), `set session innodb_snapshot_isolation = on`)
		ok(t, err)
		_, err = databases.Value[int64](t.Context(), tx, `select count(*) from account`)
		ok(t, err)
		outcome, err := w.deliver(t.Context(), message(3))
		want(t, outcome, err, once.Done)
		_, err = w.inbox.Once(t.Context(), tx, message(3), func(context.Context) error { return nil })
		wantKind(t, err, interlock.Retryable, nil)
	}
}

func testHooks(t *testing.T, w world) {
	var told []string
	w.inbox.Hooks = &observe.Once{}
	quiet := w
	w.inbox.Hooks = &observe.Once{
		Duplicate:  func(m observe.OnceMessage) { told = append(told, fmt.Sprint("duplicate ", m)) },
		Mismatched: func(m observe.OnceMessage) { told = append(told, fmt.Sprint("mismatched ", m)) },
		Gap:        func(g observe.OnceGap) { told = append(told, fmt.Sprint("gap ", g)) },
		Cleaned:    func(c observe.OnceCleaned) { told = append(told, fmt.Sprint("cleaned ", c.Rows, c.Generation, c.Err)) },
	}
	for _, w := range []world{quiet, w} {
		_, _ = w.deliver(t.Context(), message(1))
		_, _ = w.deliver(t.Context(), once.Message{ID: "m1", Payload: []byte("another")})
		_, _ = w.deliver(t.Context(), once.Message{ID: "m3", Key: "k", Epoch: 2, Seq: 3})
	}
	_, err := once.BatchTx(t.Context(), w.DB, w.inbox, []once.Message{message(1), {ID: "m1"}}, nothingNew)
	ok(t, err)
	got := strings.Join(told, "\n")
	if wanted := `duplicate {billing m1  0 0}
mismatched {billing m1  0 0}
gap {billing k 2 1 3}
duplicate {billing m1  0 0}
mismatched {billing m1  0 0}`; got != wanted {
		t.Errorf("told:\n%s\nwant:\n%s", got, wanted)
	}
}

func testCosts(t *testing.T, w world) {
	db := &databases.Counted{BeginnerAt: w.DB}
	deliver := func(what string, m once.Message, statements, commits int64) {
		t.Helper()
		db.Reset()
		_, err := once.Tx(t.Context(), db, w.inbox, m, effect(m.ID))
		ok(t, err)
		if db.Statements.Load() != statements || db.Commits.Load() != commits {
			t.Errorf("%s: %d statements, %d commits, want %d, %d", what, db.Statements.Load(), db.Commits.Load(), statements, commits)
		}
	}
	deliver("a new message", message(1), 1+1, 1)
	duplicate := int64(1)
	if w.Dialect == driver.Postgres {
		duplicate = 2 // the second one reads the hash
	}
	deliver("a duplicate", message(1), duplicate, 0)
	w.inbox.Optimistic = true
	deliver("a new message of an optimist", message(2), 2+1, 1)
	deliver("a duplicate of an optimist", message(2), 1, 0)
}

// TestOpen: an inbox opened by URL has its tables and sweeps them; a repeated message
// is a duplicate.
func TestOpen(t *testing.T) {
	for _, rotated := range []bool{false, true} {
		databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
			c, err := once.Open(t.Context(), open(t).URL, once.Inbox{Consumer: "billing", Rotated: rotated})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []once.Outcome{once.Done, once.Duplicate} {
				got, err := c.Receive(t.Context(), once.Message{ID: "1"}, func(context.Context, interlock.SQL) error { return nil })
				if got != want || err != nil {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}, databases.Pgx)
	}
	if _, err := once.Open(t.Context(), "memory://inbox", once.Inbox{Consumer: "billing"}); !errors.As(err, new(*backend.URLError)) {
		t.Errorf("a system without tables: %v", err)
	}
}

func testNames(t *testing.T, w world) {
	ids := []string{"a", "A", "a ", " a", "é", "e\u0301", "ключ", "a\nb", "a\\", "%", "_", "'; drop table effect; --", `"`, "\u2028<&>",
		"$1", "?", strings.Repeat("x", 255), strings.Repeat("x", 254) + "y", "💥"}
	run := func(context.Context, driver.SQL) error { return nil }
	for _, wanted := range []once.Outcome{once.Done, once.Duplicate} {
		for _, id := range ids {
			outcome, err := once.Tx(t.Context(), w.DB, w.inbox, once.Message{ID: id}, run)
			want(t, outcome, err, wanted)
			outcome, err = once.Tx(t.Context(), w.DB, w.inbox, once.Message{Key: id, Seq: 1}, run)
			want(t, outcome, err, wanted)
			in := w.inbox
			in.Consumer = id
			outcome, err = once.Tx(t.Context(), w.DB, in, once.Message{ID: "of another consumer"}, run)
			want(t, outcome, err, wanted)
		}
	}
}

func testBadInput(t *testing.T, w world) {
	run := func(context.Context, driver.SQL) error { return nil }
	bug := func(in once.Inbox, m once.Message, target error) {
		t.Helper()
		outcome, err := once.Tx(t.Context(), w.DB, in, m, run)
		if wantKind(t, err, interlock.Bug, target); outcome != once.Undone {
			t.Errorf("%v", outcome)
		}
		_, err = once.BatchTx(t.Context(), w.DB, in, []once.Message{message(1), m}, nothingNew)
		wantKind(t, err, interlock.Bug, target)
	}
	for _, id := range []string{"", strings.Repeat("x", 256), "\xff", "a\x00b"} {
		bug(w.inbox, once.Message{ID: id}, interlock.ErrName)
		in := w.inbox
		in.Consumer = id
		bug(in, message(1), interlock.ErrName)
		outcome, err := once.Tx(t.Context(), w.DB, w.inbox, once.Message{ID: "m1", Key: id, Seq: 1}, run)
		if wantKind(t, err, interlock.Bug, interlock.ErrName); outcome != once.Undone {
			t.Errorf("%v", outcome)
		}
	}
	for _, m := range []once.Message{{ID: "m", Seq: -1}, {ID: "m", Epoch: -1}, {ID: "m", Hash: []byte{1}}} {
		bug(w.inbox, m, nil)
	}
	bug(once.Inbox{Consumer: "c", Retention: -1}, message(1), nil)
	bug(once.Inbox{Consumer: "c", Name: "a.b.c"}, message(1), interlock.ErrName)
	bug(once.Inbox{Consumer: "c", Name: strings.Repeat("n", 60)}, message(1), interlock.ErrName)
	for _, err := range []error{
		second(once.Tx[driver.SQL](t.Context(), nil, w.inbox, message(1), run)),
		second(once.Tx(t.Context(), w.DB, w.inbox, message(1), nil)),
		second(once.BatchTx(t.Context(), w.DB, w.inbox, nil, nil)),
		second(w.inbox.Once(t.Context(), nil, message(1), func(context.Context) error { return nil })),
		second(w.inbox.Once(t.Context(), foreign{}, message(1), func(context.Context) error { return nil })),
		second(w.inbox.Batch(t.Context(), nil, nil, func(context.Context, []once.Message) error { return nil })),
		second(once.BatchTx(t.Context(), w.DB, w.inbox, []once.Message{{Key: "k", Seq: 1}}, nothingNew)),
		w.inbox.Skip(t.Context(), nil, "k", 0, 1), w.inbox.Skip(t.Context(), foreign{}, "k", 0, 0),
		w.inbox.Create(t.Context(), nil),
	} {
		wantKind(t, err, interlock.Bug, nil)
	}
	missing := w.inbox
	missing.Name = "nowhere"
	_, err := once.Tx(t.Context(), w.DB, missing, message(1), run)
	if wantKind(t, err, interlock.Definite, nil); !strings.Contains(err.Error(), "with Create") {
		t.Errorf("%v does not say what to do", err)
	}
	db, closed, err := databases.Connect(t.Context(), w.Client, w.URL)
	ok(t, err)
	closed()
	if outcome, err := once.Tx(t.Context(), db, w.inbox, message(1), run); err == nil || outcome != once.Undone {
		t.Errorf("on a closed database: %v, %v", outcome, err)
	}
	outcome, err := w.deliver(t.Context(), message(1)) // none of these calls was recorded
	want(t, outcome, err, once.Done)
}

func second[T any](_ T, err error) error { return err }

func nothingNew(context.Context, driver.SQL, []once.Message) error { return nil }

// foreign is a database of another kind.
type foreign struct{ driver.SQL }

func (foreign) Dialect() driver.Dialect { return "sqlite" }
