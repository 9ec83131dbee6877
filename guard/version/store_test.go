package version_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

const order = "order/42"

// shop is a store in memory, in virtual time, that fails on demand.
type shop struct {
	*testing.T
	flaky *flaky
	*version.Store
}

func inShop(t *testing.T, o version.Options, test func(shop)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		f := &flaky{Versions: memory.NewVersions()}
		s, err := version.NewStore(f, &o)
		ok(t, err)
		test(shop{t, f, s})
	})
}

func at1(v int64) driver.Versioned {
	return driver.Versioned{Stamp: version.Stamp{Version: v}, Data: fmt.Append(nil, v)}
}

func (s shop) mustApply(v driver.Versioned, want version.Outcome) {
	s.Helper()
	if o, _, err := s.Apply(s.Context(), order, v); err != nil || o != want {
		s.Fatalf("apply %v: %v, %v; want %v", v.Stamp, o, err, want)
	}
}

// flaky fails as configured. Tests configure it while no call is running.
type flaky struct {
	driver.Versions
	mu     sync.Mutex
	calls  int
	before []error // of the next calls, which then do nothing
	after  []error // of the next writes, which are then done without an answer
	then   func()  // after the first write without an answer
}

var (
	errLost = &interlock.Error{Op: "apply state", Driver: "flaky", Kind: interlock.Uncertain, Err: errors.New("the reply was lost")}
	errBusy = &interlock.Error{Op: "apply state", Driver: "flaky", Kind: interlock.Retryable, Err: errors.New("busy")}
)

func (f *flaky) fail(writes bool) (before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if len(f.before) > 0 {
		before, f.before = f.before[0], f.before[1:]
		return before, nil
	}
	if writes && len(f.after) > 0 {
		after, f.after = f.after[0], f.after[1:]
	}
	return nil, after
}

func (f *flaky) write(do func() (version.Outcome, driver.Versioned, error)) (version.Outcome, driver.Versioned, error) {
	before, after := f.fail(true)
	if before != nil {
		return 0, driver.Versioned{}, before
	}
	o, stored, err := do()
	if after == nil {
		return o, stored, err
	}
	if f.then != nil {
		f.then()
		f.then = nil
	}
	return 0, driver.Versioned{}, after
}

func (f *flaky) Apply(ctx context.Context, name string, v driver.Versioned) (version.Outcome, driver.Versioned, error) {
	return f.write(func() (version.Outcome, driver.Versioned, error) { return f.Versions.Apply(ctx, name, v) })
}

func (f *flaky) Replace(ctx context.Context, name string, old version.Stamp, v driver.Versioned) (version.Outcome, driver.Versioned, error) {
	return f.write(func() (version.Outcome, driver.Versioned, error) { return f.Versions.Replace(ctx, name, old, v) })
}

func (f *flaky) Get(ctx context.Context, name string) (driver.Versioned, error) {
	if before, _ := f.fail(false); before != nil {
		return driver.Versioned{}, before
	}
	return f.Versions.Get(ctx, name)
}

// TestStoreRepeatsWithoutDoubt: a change that was applied without an answer returns Applied, and an
// unknown outcome is Uncertain.
func TestStoreRepeatsWithoutDoubt(t *testing.T) {
	inShop(t, version.Options{}, func(s shop) {
		s.flaky.before, s.flaky.after = []error{errBusy}, []error{errLost, errLost}
		s.mustApply(at1(1), version.Applied)
		if s.flaky.calls != 4 {
			s.Errorf("%d requests, want 4", s.flaky.calls)
		}
		s.mustApply(at1(1), version.Duplicate)
		s.flaky.after, s.flaky.then = []error{errLost}, func() { _, _, _ = s.flaky.Versions.Apply(s.Context(), order, at1(9)) }
		s.mustApply(at1(2), version.Stale) // it was applied, and then a newer one
		s.flaky.before = []error{errLost, errBusy, errBusy, errBusy}
		_, _, err := s.Apply(s.Context(), order, at1(10))
		mustFail(t, err, interlock.Uncertain, errBusy)
		s.flaky.calls, s.flaky.before = 0, []error{errBusy, errBusy, errBusy, errBusy, errBusy}
		_, _, err = s.Apply(s.Context(), order, at1(10))
		mustFail(t, err, interlock.Retryable, errBusy)
		if s.flaky.calls != version.DefaultAttempts {
			s.Errorf("%d requests", s.flaky.calls)
		}
		if v, err := s.Get(s.Context(), order); err != nil || v.Stamp.Version != 9 || string(v.Data) != "9" {
			s.Errorf("%+v, %v", v, err)
		}
	})
}

// TestStoreRefusesUnsent: an invalid state is rejected before any request.
func TestStoreRefusesUnsent(t *testing.T) {
	inShop(t, version.Options{}, func(s shop) {
		same := func(_ context.Context, was driver.Versioned) (driver.Versioned, error) { return was, nil }
		for _, name := range []string{"", "\xff", "a\x00", strings.Repeat("x", driver.MaxName+1)} {
			_, _, err := s.Apply(s.Context(), name, at1(1))
			mustFail(t, err, interlock.Bug, interlock.ErrName)
			_, err = s.Get(s.Context(), name)
			mustFail(t, err, interlock.Bug, interlock.ErrName)
			mustFail(t, s.Update(s.Context(), name, same), interlock.Bug, interlock.ErrName)
		}
		for _, bad := range []driver.Versioned{{}, at1(-1), {Stamp: version.Stamp{Version: 1}, Data: make([]byte, driver.MaxValue+1)}} {
			_, _, err := s.Apply(s.Context(), order, bad)
			mustFail(t, err, interlock.Bug, nil)
		}
		if s.flaky.calls != 0 {
			s.Errorf("%d requests", s.flaky.calls)
		}
		err := s.Update(s.Context(), order, func(_ context.Context, v driver.Versioned) (driver.Versioned, error) {
			v.Data = make([]byte, driver.MaxValue+1)
			return v, nil
		})
		mustFail(t, err, interlock.Bug, nil)
		last := at1(math.MaxInt64) // there is no later version
		s.mustApply(last, version.Applied)
		mustFail(t, s.Update(s.Context(), order, same), interlock.Bug, nil)
		if v, err := s.Get(s.Context(), order); err != nil || v.Stamp != last.Stamp {
			s.Errorf("%+v, %v", v, err)
		}
	})
}

// TestStoreUpdateLosesNothing with sixteen writers. The suite of driver.Versions races on servers.
func TestStoreUpdateLosesNothing(t *testing.T) {
	var stats version.Stats
	s, err := version.NewStore(memory.NewVersions(), &version.Options{Attempts: 1000, First: time.Millisecond, Max: 10 * time.Millisecond, Hooks: stats.Hooks()})
	ok(t, err)
	const writers, each = 16, 10
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for range each {
				err := s.Update(t.Context(), order, func(_ context.Context, v driver.Versioned) (driver.Versioned, error) {
					v.Data = append(v.Data, 'x')
					runtime.Gosched() // let others read the state before it is replaced
					return v, nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	got, err := s.Get(t.Context(), order)
	c := stats.Counts()
	if err != nil || len(got.Data) != writers*each || got.Stamp.Version != writers*each || c.Attempts != writers*each+c.Conflicts {
		t.Errorf("%d updates are left, at %v, %v; %+v", len(got.Data), got.Stamp, err, c)
	}
	t.Logf("%+v, conflict rate %.2f", c, c.ConflictRate())
}

// TestStoreUpdateInDoubt: a repetition resolves a lost reply, unless another writer has written in
// between.
func TestStoreUpdateInDoubt(t *testing.T) {
	inShop(t, version.Options{}, func(s shop) {
		n := 0
		add := func(_ context.Context, v driver.Versioned) (driver.Versioned, error) {
			n++
			v.Data = append(v.Data, 'x')
			return v, nil
		}
		s.flaky.after = []error{errLost, errLost}
		ok(t, s.Update(s.Context(), order, add))
		if v, _ := s.Get(s.Context(), order); string(v.Data) != "x" || n != 1 {
			s.Errorf("%q after %d runs", v.Data, n)
		}
		s.flaky.after, s.flaky.then = []error{errLost}, func() { _, _, _ = s.flaky.Versions.Apply(s.Context(), order, at1(9)) }
		mustFail(t, s.Update(s.Context(), order, add), interlock.Uncertain, interlock.ErrUncertain)
		if n != 2 {
			s.Errorf("an update that may be done was run %d times", n-1)
		}
		// A conflict without doubt is retried.
		n = 0
		ok(t, s.Update(s.Context(), order, func(ctx context.Context, v driver.Versioned) (driver.Versioned, error) {
			if n == 0 {
				_, _, err := s.flaky.Versions.Apply(ctx, order, at1(10))
				ok(t, err)
			}
			return add(ctx, v)
		}))
		if v, _ := s.Get(s.Context(), order); string(v.Data) != "10x" || n != 2 || v.Stamp.Version != 11 || v.Stamp.Tie == "" {
			s.Errorf("%q at %v after %d runs", v.Data, v.Stamp, n)
		}
	})
}

// TestStoreUpdateEnds with a terminal state, an error of change, or the end of its context.
func TestStoreUpdateEnds(t *testing.T) {
	inShop(t, version.Options{}, func(s shop) {
		errOwn := errors.New("sold out")
		err := s.Update(s.Context(), order, func(context.Context, driver.Versioned) (driver.Versioned, error) {
			return driver.Versioned{}, errOwn
		})
		if err != errOwn {
			s.Errorf("%v", err)
		}
		overtaken := func(ctx context.Context, v driver.Versioned) (driver.Versioned, error) {
			_, _, err := s.flaky.Versions.Apply(ctx, order, at1(v.Stamp.Version+1))
			return v, err
		}
		mustFail(t, s.Update(s.Context(), order, overtaken), interlock.Retryable, version.ErrConflict)
		cause := errors.New("no more time")
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Millisecond, cause)
		defer cancel()
		mustFail(t, s.Update(ctx, order, overtaken), interlock.Retryable, cause)
		s.flaky.before = []error{errBusy, errBusy, errBusy, errBusy}
		s.flaky.calls = 0
		mustFail(t, s.Update(s.Context(), order, overtaken), interlock.Retryable, errBusy)
		if s.flaky.calls != 4 {
			s.Errorf("%d requests: retries are multiplied", s.flaky.calls)
		}
		ended := at1(100)
		ended.Terminal = true
		s.flaky.calls = 0
		err = s.Update(s.Context(), order, func(ctx context.Context, v driver.Versioned) (driver.Versioned, error) {
			_, _, err := s.flaky.Versions.Apply(ctx, order, ended)
			return v, err
		})
		var over *version.TerminalError
		if mustFail(t, err, interlock.Definite, nil); !errors.As(err, &over) || over.Stamp != ended.Stamp || s.flaky.calls != 2 {
			s.Errorf("%v after %d requests", err, s.flaky.calls)
		}
		err = s.Update(s.Context(), order, func(context.Context, driver.Versioned) (driver.Versioned, error) {
			t.Error("run on a terminal state")
			return driver.Versioned{}, nil
		})
		mustFail(t, err, interlock.Definite, nil)
	})
}

// TestPausesGrowAndAreRandom: hooks receive each.
func TestPausesGrowAndAreRandom(t *testing.T) {
	var delays []time.Duration
	attempts, exhausted := 0, 0
	hooks := &observe.Version{
		Attempted: func(e observe.VersionAttempted) {
			if attempts++; e.Attempt != attempts || !e.Conflict || !errors.Is(e.Err, version.ErrConflict) || e.Name != order {
				t.Errorf("attempt %d: %+v", attempts, e)
			}
		},
		Retrying:  func(e observe.VersionRetrying) { delays = append(delays, e.Delay) },
		Exhausted: func(e observe.VersionExhausted) { exhausted = e.Attempts },
	}
	o := version.Options{Attempts: 9, First: 80 * time.Millisecond, Max: time.Second, Hooks: hooks}
	inShop(t, o, func(s shop) {
		began := time.Now()
		err := s.Update(s.Context(), order, func(ctx context.Context, v driver.Versioned) (driver.Versioned, error) {
			_, _, err := s.flaky.Versions.Apply(ctx, order, at1(v.Stamp.Version+1))
			return v, err
		})
		mustFail(t, err, interlock.Retryable, version.ErrConflict)
		total := time.Duration(0)
		for i, d := range delays {
			bound := min(80*time.Millisecond<<i, time.Second)
			if total += d; d < bound/8 || d > bound {
				t.Errorf("pause %d is %v, and its bound %v", i, d, bound)
			}
		}
		if took := time.Since(began); attempts != 9 || exhausted != 9 || len(delays) != 8 || took != total {
			t.Errorf("%d attempts, %d told at the end, %d pauses of %v together, in %v", attempts, exhausted, len(delays), total, took)
		}
		if d := slices.Compact(slices.Clone(delays[4:])); len(d) < 2 { // they have the same bound
			t.Errorf("pauses are not random: %v", delays)
		}
	})
}

// aged makes all rows of the table an hour older.
var aged = map[driver.Dialect]string{
	driver.Postgres: `update interlock_version set changed_at = changed_at - interval '1 hour'`,
	driver.MariaDB:  `update interlock_version set changed_at = changed_at - interval 1 hour`,
}

func testPurge(w world) {
	t := version.Table{}
	for i := range 7 {
		w.mustApply(t, deleted(change(fmt.Sprint("old ", i), 5, "")), version.Applied)
	}
	w.mustApply(t, change("alive", 5, ""), version.Applied)
	w.mustApply(t, terminal(change("ended", 5, "")), version.Applied)
	w.DB.Exec(w.T, aged[w.Dialect])
	w.mustApply(t, deleted(change("young", 5, "")), version.Applied)
	w.mustApply(t, change("old 0", 6, ""), version.Applied) // it was restored
	purge := func(age time.Duration, limit int) (n int64) {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
			n, err = t.Purge(ctx, db, age, limit)
			return err
		})
		return n
	}
	if n := purge(2*time.Hour, 0); n != 0 {
		w.Errorf("%d were purged before their time", n)
	}
	for i, want := range []int64{4, 2, 0} {
		if n := purge(30*time.Minute, 4); n != want {
			w.Errorf("purge %d removed %d, want %d", i, n, want)
		}
	}
	for id, kept := range map[string]bool{"old 0": true, "old 1": false, "alive": true, "ended": true, "young": true} {
		if got := w.state(id).Stamp.Version > 0; got != kept {
			w.Errorf("%s is kept: %v", id, got)
		}
	}
	w.mustApply(t, change("young", 4, ""), version.Stale)
	w.mustApply(t, change("old 1", 4, ""), version.Applied) // so age must be long
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		for _, bad := range []struct {
			age   time.Duration
			limit int
		}{{0, 1}, {-time.Hour, 1}, {time.Hour, -1}} {
			_, err := t.Purge(ctx, db, bad.age, bad.limit)
			mustFail(w.T, err, interlock.Bug, nil)
		}
		return nil
	})
}

// testPurgeBehind: Purge keeps a tombstone that a running transaction replaces by a newer state,
// and that state.
func testPurgeBehind(w world) {
	t := version.Table{}
	w.guards()
	w.order("back")
	w.mustApply(t, deleted(change("back", 1, "")), version.Applied)
	w.DB.Exec(w.T, aged[w.Dialect])
	first := w.first(t, change("back", 2, ""))
	purged := int64(-1)
	purge := func() error {
		return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) (err error) {
			purged, err = t.Purge(ctx, db, time.Minute, 0)
			return err
		})
	}
	if w.Dialect == driver.Postgres { // it does not even wait
		ok(w.T, testbed.Later(w.T, bound, purge)())
		ok(w.T, first.Commit(w.Context()))
	} else {
		second := w.behind(purge)
		ok(w.T, first.Commit(w.Context()))
		ok(w.T, second())
	}
	if s := w.state("back"); purged != 0 || s.Stamp.Version != 2 || s.Deleted {
		w.Errorf("purged %d, and %+v is left", purged, s)
	}
}

// testPurgeMany: a limit above the number of parameters of a statement.
func testPurgeMany(w world) {
	const many = 70_000
	w.DB.Exec(w.T, map[driver.Dialect]string{
		driver.Postgres: `insert into interlock_version select 'gone ' || n, 1, '', true, false, now() - interval '1 hour' from generate_series(1, 70000) n`,
		driver.MariaDB: `insert into interlock_version (entity, stamp, deleted, repeated, changed_at)
			select concat('gone ', seq), concat('0', lpad('1', 19, '0')), 1, 0, utc_timestamp(6) - interval 1 hour from seq_1_to_70000`,
	}[w.Dialect])
	for _, want := range []int64{many - 1, 1, 0} {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
			n, err := version.Table{}.Purge(ctx, db, time.Minute, many-1)
			if n != want {
				w.Errorf("purged %d, want %d", n, want)
			}
			return err
		})
	}
}

// testPurgeLimit: the limit holds for any plan of the database.
func testPurgeLimit(w world) {
	if w.Dialect != driver.Postgres {
		w.Skip("there is no such plan")
	}
	w.DB.Exec(w.T, `insert into interlock_version select 'gone ' || n, 1, '', true, false, now() - interval '1 hour' from generate_series(1, 50) n`)
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		for _, off := range []string{"hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize"} {
			if _, err := db.Exec(ctx, `set local enable_`+off+` = off`); err != nil {
				return err
			}
		}
		n, err := version.Table{}.Purge(ctx, db, time.Minute, 7)
		if n != 7 {
			w.Errorf("purged %d, want 7", n)
		}
		return err
	})
}
