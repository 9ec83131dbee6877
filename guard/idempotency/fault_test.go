package idempotency_test

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
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// doubtful is a database whose n-th commit has an unknown outcome: it is done, not done, or done
// after the client has its error.
type doubtful struct {
	driver.Beginner[tx]
	doubt   string
	at      int64 // counted from 1; 0 means none
	commits atomic.Int64
	down    atomic.Int64 // number of transactions after that commit that cannot begin
	late    sync.WaitGroup
}

var doubts = []string{"done", "not done", "done later"}

func (d *doubtful) Begin(ctx context.Context) (driver.Tx[tx], error) {
	if d.commits.Load() == d.at && d.down.Add(-1) >= 0 {
		return nil, &interlock.Error{Op: "begin", Kind: interlock.Definite, Err: errors.New("down")}
	}
	t, err := d.Beginner.Begin(ctx)
	return doubtfulTx{t, d}, err
}

type doubtfulTx struct {
	driver.Tx[tx]
	d *doubtful
}

func (t doubtfulTx) Native() tx { return t.Tx.Native() }

func (t doubtfulTx) Commit(ctx context.Context) error {
	if t.d.commits.Add(1) != t.d.at {
		return t.Tx.Commit(ctx)
	}
	var err error
	switch t.d.doubt {
	case "done":
		err = t.Tx.Commit(ctx)
	case "not done":
		err = t.Tx.Rollback(ctx)
	case "done later":
		t.d.late.Go(func() {
			time.Sleep(100 * time.Millisecond) // the server is slow; the client continues
			_ = t.Tx.Commit(context.WithoutCancel(ctx))
		})
	}
	return errors.Join(err, &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("reply lost")})
}

func (t doubtfulTx) Rollback(ctx context.Context) error {
	if t.d.commits.Load() == t.d.at { // like a client without a connection
		return nil
	}
	return t.Tx.Rollback(ctx)
}

// testCommitInDoubt: the commit of the claim, a phase, the finish or the last phase has any
// outcome. The effects happen once, and the answer is returned.
func testCommitInDoubt(t *testing.T, w world) {
	for _, doubt := range doubts {
		for at := int64(1); at <= 4; at++ {
			for _, folded := range []bool{false, true} {
				d := &doubtful{Beginner: w.DB, doubt: doubt, at: at}
				records := idempotency.NewSQL[tx](d, idempotency.Table{})
				key := fmt.Sprintf("%s at %d %v", doubt, at, folded)
				got, err := open(t, records, nil).Do(t.Context(), order(key), inDoubt(records, key, folded))
				d.late.Wait()
				wantAnswer(t, got, err, "pay of attempt 1", false)
				got, err = w.store.Do(t.Context(), order(key), never)
				wantAnswer(t, got, err, "pay of attempt 1", true)
				want := "pay by 1, send by 1"
				if got := w.effects(t, key); got != want {
					t.Errorf("%s: effects: %s, want %s", key, got, want)
				}
			}
		}
	}
}

// testDoubtThatLasts: a phase has an unknown outcome, which the store cannot tell. The outcome is
// looked up before the next phase, so that no attempt repeats the phase.
func testDoubtThatLasts(t *testing.T, w world) {
	for _, next := range []string{"pay", "send", "decline"} {
		d := &doubtful{Beginner: w.DB, doubt: "done", at: 2}
		d.down.Store(1)
		records := idempotency.NewSQL[tx](d, idempotency.Table{})
		store := open(t, records, nil)
		_, err := store.Do(t.Context(), order(next), func(ctx context.Context) (idempotency.Response, error) {
			_, err := phase(ctx, records, "pay")
			wantKind(t, err, interlock.Uncertain, nil)
			if next == "decline" {
				idempotency.From(ctx).Decline()
				return answer(429, ""), nil
			}
			_, err = phase(ctx, records, next)
			return answer(500, ""), errors.Join(err, errors.New("failed"))
		})
		if err != nil && err.Error() != "failed" {
			t.Errorf("%s: %v", next, err)
		}
		_, err = store.Do(t.Context(), order(next), inDoubt(records, next, false))
		if got := w.effects(t, next); err != nil || !strings.HasPrefix(got, "pay by 1, send by ") {
			t.Errorf("then %s: effects %s, %v", next, got, err)
		}
	}
}

// testLastDoubtIsNoAnswer: the last phase has an unknown outcome, and its function returns another answer,
// which is not sent: retries would receive that of the phase.
func testLastDoubtIsNoAnswer(t *testing.T, w world) {
	d := &doubtful{Beginner: w.DB, doubt: "done", at: 2}
	d.down.Store(2)
	records := idempotency.NewSQL[tx](d, idempotency.Table{})
	_, err := open(t, records, nil).Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		_, err := idempotency.LastPhase(ctx, records, func(context.Context, tx) (idempotency.Response, error) { return answer(200, "done"), nil })
		wantKind(t, err, interlock.Uncertain, nil)
		return answer(200, "perhaps"), nil
	})
	wantKind(t, err, interlock.Uncertain, nil)
	got, err := w.store.Do(t.Context(), order("k"), never)
	wantAnswer(t, got, err, "done", true)
}

// inDoubt returns a function with three commits after the claim's, or two with the answer in the
// last.
func inDoubt(records *idempotency.SQL[tx], key string, folded bool) idempotency.Func {
	return func(ctx context.Context) (idempotency.Response, error) {
		paid, err := phase(ctx, records, "pay")
		if err == nil && folded {
			return idempotency.LastPhase(ctx, records, func(ctx context.Context, db tx) (idempotency.Response, error) {
				return answer(200, paid), effect(ctx, db, key, "send", 1)
			})
		}
		if err == nil {
			_, err = phase(ctx, records, "send")
		}
		return answer(200, paid), err
	}
}

// testLostConnection: a phase whose connection is lost before its COMMIT runs again.
func testLostConnection(t *testing.T, w world) {
	path := testbed.NewProxy(t, w.Server.Addr())
	records := idempotency.NewSQL[tx](w.Through(t, path), idempotency.Table{})
	runs := 0
	got, err := open(t, records, nil).Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		s, err := idempotency.Phase(ctx, records, "pay", func(ctx context.Context, db tx) (string, error) {
			if runs++; runs == 1 {
				path.CutAfter(0)
			}
			return "paid", effect(ctx, db, "k", "pay", 1)
		})
		return answer(200, s), err
	})
	wantAnswer(t, got, err, "paid", false)
	if got := w.effects(t, "k"); got != "pay by 1" || runs != 2 {
		t.Errorf("effects: %s, run %d times", got, runs)
	}
}

// silent is a database whose first connection for a phase does not answer BEGIN. Others renew the lease.
type silent struct {
	driver.Beginner[tx]
	asked atomic.Bool
}

type ofPhase struct{}

func (s *silent) Begin(ctx context.Context) (driver.Tx[tx], error) {
	if ctx.Value(ofPhase{}) != nil && s.asked.CompareAndSwap(false, true) {
		<-ctx.Done()
		return nil, &interlock.Error{Op: "begin transaction", Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	return s.Beginner.Begin(ctx)
}

// testSilentBegin: a phase waits for BEGIN for a lease at most, and then begins again.
func testSilentBegin(t *testing.T, w world) {
	s := &silent{Beginner: w.DB}
	records := idempotency.NewSQL[tx](s, idempotency.Table{})
	store := open(t, records, &idempotency.Options{Lease: 2 * time.Second})
	got, err := store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, ofPhase{}, true), bound)
		defer cancel()
		s, err := phase(ctx, records, "pay")
		return answer(200, s), err
	})
	wantAnswer(t, got, err, "pay of attempt 1", false)
	if !s.asked.Load() {
		t.Error("the connection was not asked")
	}
}

// atLevel begins transactions at a level.
type atLevel struct {
	driver.BeginnerAt[tx]
	level driver.Isolation
}

func (a atLevel) Begin(ctx context.Context) (driver.Tx[tx], error) { return a.BeginAt(ctx, a.level) }

// testIsolation sends one request many times at once, at each level.
func testIsolation(t *testing.T, w world) {
	for _, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable} {
		key := level.String()
		records := idempotency.NewSQL[tx](atLevel{w.DB, level}, idempotency.Table{})
		store := open(t, records, nil)
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				call := order(key)
				call.Wait = bound
				got, err := store.Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
					s, err := phase(ctx, records, "pay")
					return answer(200, s), err
				})
				wantAnswer(t, got, err, "pay of attempt 1", got.Replayed)
			})
		}
		running.Wait()
		if got := w.effects(t, key); got != "pay by 1" {
			t.Errorf("%v: effects: %s", level, got)
		}
	}
}

// testClockSetBack: the database's clock is set back by an hour after an attempt has begun. The
// attempt finishes. An abandoned attempt blocks the next one, is not lost, and can be released.
func testClockSetBack(t *testing.T, w world) {
	set := map[driver.Dialect]string{
		driver.Postgres: `update interlock_idempotency set lease_until = lease_until + interval '1 hour', created_at = created_at + interval '1 hour'`,
		driver.MariaDB:  `update interlock_idempotency set lease_until = lease_until + interval 1 hour, created_at = created_at + interval 1 hour`,
	}[w.Dialect]
	got, err := w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		w.Exec(t, set)
		s, err := phase(ctx, w.records, "pay")
		_, busy := w.store.Do(t.Context(), order("k"), never)
		if e := as[*idempotency.InFlightError](t, busy); e != nil && (e.Remaining <= 0 || e.Remaining > idempotency.DefaultLease) {
			t.Errorf("%+v", e)
		}
		return answer(200, s), err
	})
	wantAnswer(t, got, err, "pay of attempt 1", false)
	claim := driver.IdempotencyClaim{ID: driver.IdempotencyID{Scope: "alice", Operation: "POST /orders", Key: "left"},
		Fingerprint: order("left").Fingerprint, Owner: "left", Lease: time.Millisecond}
	_, err = w.records.Claim(t.Context(), claim)
	ok(t, err)
	w.Exec(t, set)
	_, err = w.store.Do(t.Context(), order("left"), never)
	as[*idempotency.InFlightError](t, err)
	release(t, w.records, "left")
	got, err = w.store.Do(t.Context(), order("left"), func(ctx context.Context) (idempotency.Response, error) {
		s, err := phase(ctx, w.records, "pay")
		return answer(200, s), err
	})
	wantAnswer(t, got, err, "pay of attempt 2", false)
}

// testResults: a phase whose result cannot be stored or read leaves no effect.
func testResults(t *testing.T, w world) {
	big := func(n int) func(context.Context, tx) (string, error) {
		return func(ctx context.Context, db tx) (string, error) {
			return strings.Repeat("x", n), effect(ctx, db, "k", fmt.Sprint(n), 1)
		}
	}
	_, err := w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		if s, err := idempotency.Phase(ctx, w.records, "large", big(60<<10)); err != nil || len(s) != 60<<10 {
			t.Errorf("%d bytes, %v", len(s), err)
		}
		_, err := idempotency.Phase(ctx, w.records, "too large", big(5<<10))
		wantKind(t, err, interlock.Definite, nil)
		_, err = idempotency.Phase(ctx, w.records, "no JSON", func(ctx context.Context, db tx) (func(), error) { return nil, effect(ctx, db, "k", "no JSON", 1) })
		wantKind(t, err, interlock.Bug, nil)
		_, err = idempotency.Phase(ctx, w.records, "large", func(context.Context, tx) (int, error) { return 0, errors.New("it was run") })
		wantKind(t, err, interlock.Definite, nil)
		return answer(200, ""), nil
	})
	ok(t, err)
	if got := w.effects(t, "k"); got != "61440 by 1" {
		t.Errorf("effects: %s", got)
	}
}

// TestStepIsDoneAgain shows the weaker guarantee of a key-value store: an effect whose record was
// lost with its process happens twice. A recorded effect does not.
func TestStepIsDoneAgain(t *testing.T) {
	client, err := redis.Dial(testbed.Redis(t).URL())
	ok(t, err)
	defer client.Close()
	records := redis.NewIdempotency(client, "")
	count := func(ctx context.Context) (int64, error) {
		return idempotency.Step(ctx, "count", func(ctx context.Context) (int64, error) {
			return client.Do(ctx, client.B().Incr().Key("count").Build()).ToInt64()
		})
	}
	work := func(crash bool) idempotency.Func {
		return func(ctx context.Context) (idempotency.Response, error) {
			n, err := count(ctx)
			if crash {
				err = errors.Join(err, errors.New("crashed"))
			}
			return answer(200, fmt.Sprint("count ", n)), err
		}
	}
	_, err = open(t, dead{records}, nil).Do(t.Context(), order("k"), work(true))
	wantKind(t, err, interlock.Definite, nil)
	release(t, records, "k")
	for range 3 { // the first one records it
		_, err = open(t, records, nil).Do(t.Context(), order("k"), work(true))
	}
	if err == nil {
		t.Error("it did not fail")
	}
	got, err := open(t, records, nil).Do(t.Context(), order("k"), work(false))
	wantAnswer(t, got, err, "count 2", false)
}

// dead is the records of a process that dies before it records anything.
type dead struct{ driver.Idempotency }

func (dead) Update(context.Context, driver.IdempotencyUpdate) error {
	return &interlock.Error{Op: "update", Kind: interlock.Definite, Err: errors.New("the process is dead")}
}
