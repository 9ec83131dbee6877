package rowlock_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

var accounts = rowlock.Rows{Table: "account", Key: "id"}

func testOrder(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		locked, err := rowlock.Lock(ctx, tx, accounts, "c", "a", "nobody", "b", "a")
		if err != nil || !slices.Equal(locked, []string{"a", "b", "c"}) {
			t.Errorf("locked %q, %v", locked, err)
		}
		// Only these rows are locked.
		w.in(t, func(ctx context.Context, tx driver.SQL) {
			noWait := accounts
			noWait.Mode = rowlock.NoWait
			if locked, err := rowlock.Lock(ctx, tx, noWait, "d", "e"); err != nil || len(locked) != 2 {
				t.Errorf("rows that nobody locked: %q, %v", locked, err)
			}
		})
	})
}

func testModes(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		_, err := rowlock.Lock(ctx, tx, accounts, "b")
		testbed.OK(t, err)
		for _, c := range []struct {
			rows rowlock.Rows
			want []string
			err  error
		}{
			{rowlock.Rows{Mode: rowlock.NoWait}, nil, interlock.ErrHeld},
			{rowlock.Rows{Wait: time.Second}, nil, interlock.ErrHeld},
			{rowlock.Rows{Mode: rowlock.SkipLocked}, []string{"a", "c"}, nil},
		} {
			c.rows.Table, c.rows.Key = "account", "id"
			w.in(t, func(ctx context.Context, other driver.SQL) {
				locked, err := rowlock.Lock(ctx, other, c.rows, "a", "b", "c")
				if !slices.Equal(locked, c.want) || !errors.Is(err, c.err) || err != nil && interlock.Kind(err) != interlock.Retryable {
					t.Errorf("%+v: locked %q, %v; want %q, %v", c.rows, locked, err, c.want, c.err)
				}
			})
		}
	})
}

func testWaitIsForTheStatementOnly(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		before := w.lockTimeout(t, tx)
		r := accounts
		r.Wait = math.MaxInt64
		_, err := rowlock.Lock(ctx, tx, r, "a")
		testbed.OK(t, err)
		if after := w.lockTimeout(t, tx); after != before {
			t.Errorf("the session's own bound was %s and is %s", before, after)
		}
	})
}

// testAnyOrder moves money between random accounts, named in random order.
func testAnyOrder(t *testing.T, w world) {
	const workers, each = 6, 25
	var g errgroup.Group
	for i := range workers {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		g.Go(func() error {
			for range each {
				if err := w.transfer(t.Context(), random); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err) // such as a deadlock
	}
	if total := databases.One[int64](t, w.DB, "select sum(balance) from account"); total != 500 {
		t.Errorf("there were 500, there are %d", total)
	}
}

// transfer moves one unit to each of two accounts from a third: it reads, then writes.
func (w world) transfer(ctx context.Context, random *rand.Rand) error {
	keys := []string{"a", "b", "c", "d", "e"}
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return w.scope(ctx, accounts, keys[:3], nil, func(ctx context.Context, tx driver.SQL, _ []string) error {
		for i, change := range []int64{-2, 1, 1} {
			balance, err := w.balance(ctx, tx, keys[i])
			if err != nil {
				return err
			}
			if err := w.set(ctx, tx, keys[i], balance+change); err != nil {
				return err
			}
		}
		return nil
	})
}

func testMaxHold(t *testing.T, w world) {
	slow := make(chan observe.RowsSlow, 1)
	released := make(chan observe.RowsReleased, 1)
	o := &rowlock.Options{MaxHold: 2 * time.Second, WarnAfter: 50 * time.Millisecond, Hooks: &observe.RowLock{
		Slow:     func(e observe.RowsSlow) { slow <- e },
		Released: func(e observe.RowsReleased) { released <- e },
	}}
	err := w.scope(t.Context(), accounts, []string{"a"}, o, func(ctx context.Context, tx driver.SQL, _ []string) error {
		if err := w.set(ctx, tx, "a", 0); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, rowlock.ErrMaxHold) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("got %v", err)
	}
	if e := <-slow; e.Table != "account" || e.Rows != 1 || e.Held < 50*time.Millisecond || e.Max != o.MaxHold {
		t.Errorf("the warning was %+v", e)
	}
	if e := <-released; e.Held < o.MaxHold || !errors.Is(e.Err, rowlock.ErrMaxHold) {
		t.Errorf("the end was %+v", e)
	}
	if got := databases.One[int64](t, w.DB, "select balance from account where id = 'a'"); got != 100 {
		t.Errorf("the balance is %d: something was committed", got)
	}
}

// testMaxHoldBoundsWaits: MaxHold starts with the first lock, while another row
// is waited for.
func testMaxHoldBoundsWaits(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		_, err := rowlock.Lock(ctx, tx, accounts, "b")
		testbed.OK(t, err)
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		released := make(chan observe.RowsReleased, 1)
		o := &rowlock.Options{MaxHold: 500 * time.Millisecond, Hooks: &observe.RowLock{
			Released: func(e observe.RowsReleased) { released <- e },
		}}
		err = w.scope(ctx, accounts, []string{"b", "a"}, o, func(context.Context, driver.SQL, []string) error {
			t.Error("it ran without b")
			return nil
		})
		if !errors.Is(err, rowlock.ErrMaxHold) || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("got %v", err)
		}
		if e := <-released; e.Held > 10*time.Second || e.Rows != 1 || !errors.Is(e.Err, rowlock.ErrMaxHold) {
			t.Errorf("the end was %+v", e)
		}
		if n := rowlock.Open(); n != 0 {
			t.Errorf("%d scopes are open", n)
		}
	})
}

// testLongestHold: also the longest MaxHold bounds the wait for further rows only at its end.
func testLongestHold(t *testing.T, w world) {
	db := &recording{Beginner: w.DB}
	err := rowlock.Tx(t.Context(), db, accounts, []string{"a", "b"}, &rowlock.Options{MaxHold: math.MaxInt64}, func(context.Context, driver.SQL, []string) error { return nil })
	if len(db.bounds) != 2 || db.bounds[1] < math.MaxInt64/2 {
		t.Errorf("statements are bounded by %v, %v", db.bounds, err)
	}
}

// recording records the bounds of statements.
type recording struct {
	driver.Beginner[driver.SQL]
	bounds []time.Duration
}

func (r *recording) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := r.Beginner.Begin(ctx)
	return recordingTx{tx, r}, err
}

type recordingTx struct {
	driver.Tx[driver.SQL]
	of *recording
}

func (t recordingTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	t.of.bounds = append(t.of.bounds, statement)
	return t.Tx.Bound(ctx, idle, statement)
}

// testCutOffWhileWaiting: the server ends the wait of a disconnected client, and frees the rows
// that the client had locked.
func testCutOffWhileWaiting(t *testing.T, w world) {
	proxy := testbed.NewProxy(t, w.Server.Addr())
	far := world{w.Through(t, proxy)}
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		_, err := rowlock.Lock(ctx, tx, accounts, "b")
		testbed.OK(t, err)
		ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- far.scope(ctx, accounts, []string{"a", "b"}, &rowlock.Options{MaxHold: 4 * time.Second},
				func(context.Context, driver.SQL, []string) error { return nil })
		}()
		testbed.Eventually(t, "the lock of a", 20*time.Second, func() bool { return w.isLocked(t, "a") })
		proxy.Cut()
		testbed.Eventually(t, "a, after its holder was cut off", 20*time.Second, func() bool { return !w.isLocked(t, "a") })
		proxy.Heal()
		// The client's own bound, or the end of its session, whichever comes first.
		if err := <-done; !errors.Is(err, rowlock.ErrMaxHold) && !repeatable(err) {
			t.Errorf("got %v (%v)", err, interlock.Kind(err))
		}
	})
}

// repeatable reports whether the session has ended, perhaps before the client's own bound.
func repeatable(err error) bool {
	kind := interlock.Kind(err)
	return err != nil && (kind == interlock.Retryable || kind == interlock.Uncertain)
}

// isLocked tries to lock one account.
func (w world) isLocked(t *testing.T, id string) (locked bool) {
	r := accounts
	r.Mode = rowlock.NoWait
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		_, err := rowlock.Lock(ctx, tx, r, id)
		if locked = errors.Is(err, interlock.ErrHeld); err != nil && !locked {
			t.Fatal(err)
		}
	})
	return locked
}

// testStopped: the function ignores its context, like a paused process. The server ends the
// transaction.
func testStopped(t *testing.T, w world) {
	locked, goOn := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- w.scope(t.Context(), accounts, []string{"a"}, &rowlock.Options{MaxHold: time.Second},
			func(ctx context.Context, tx driver.SQL, _ []string) error {
				err := w.set(ctx, tx, "a", 0)
				close(locked)
				<-goOn
				return err
			})
	}()
	<-locked
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if _, err := rowlock.Lock(ctx, tx, accounts, "a"); err != nil {
			t.Errorf("while the other stands still: %v", err)
		}
		if balance, err := w.balance(ctx, tx, "a"); balance != 100 || err != nil {
			t.Errorf("the balance is %d, %v: what stands still was not undone", balance, err)
		}
	})
	close(goOn)
	if err := <-done; !errors.Is(err, rowlock.ErrMaxHold) && !repeatable(err) {
		t.Errorf("who stood still has %v (%v)", err, interlock.Kind(err))
	}
}

func testRollsBack(t *testing.T, w world) {
	mine := errors.New("mine")
	fail := func(ctx context.Context, tx driver.SQL, _ []string) error {
		return errors.Join(w.set(ctx, tx, "a", 0), mine)
	}
	if err := w.scope(t.Context(), accounts, []string{"a"}, nil, fail); !errors.Is(err, mine) {
		t.Errorf("the function's error came back as %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = w.scope(t.Context(), accounts, []string{"a"}, nil, func(ctx context.Context, tx driver.SQL, keys []string) error {
			panic(fail(ctx, tx, keys))
		})
	}()
	if got := databases.One[int64](t, w.DB, "select balance from account where id = 'a'"); got != 100 {
		t.Errorf("the balance is %d: something was committed", got)
	}
	if n := rowlock.Open(); n != 0 {
		t.Errorf("%d scopes are open", n)
	}
}

func testIntegerKeys(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		locked, err := rowlock.Lock(ctx, tx, rowlock.Rows{Table: "seat", Key: "number"}, int64(10), 9, 2)
		if err != nil || !slices.Equal(locked, []int64{2, 9, 10}) {
			t.Errorf("locked %v, %v", locked, err)
		}
	})
}

func testLostReply(t *testing.T, w world) {
	proxy := testbed.NewProxy(t, w.Server.Addr())
	far := world{w.Through(t, proxy)}
	err := far.scope(t.Context(), accounts, []string{"a"}, &rowlock.Options{MaxHold: 3 * time.Second},
		func(ctx context.Context, tx driver.SQL, _ []string) error {
			if err := far.set(ctx, tx, "a", 7); err != nil {
				return err
			}
			proxy.DropReplies()
			return nil
		})
	proxy.Heal()
	if interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("COMMIT was sent and not answered: %v", err)
	}
}

func testLostStatement(t *testing.T, w world) {
	proxy := testbed.NewProxy(t, w.Server.Addr())
	far := world{w.Through(t, proxy)}
	err := far.scope(t.Context(), accounts, []string{"a"}, nil, func(ctx context.Context, tx driver.SQL, _ []string) error {
		proxy.CutAfter(0)
		return far.set(ctx, tx, "a", 7)
	})
	testbed.WantKind(t, err, interlock.Retryable, nil)
}

func TestOptionsAndRowsAreChecked(t *testing.T) {
	for _, o := range []*rowlock.Options{{MaxHold: -1}, {MaxHold: time.Second, WarnAfter: 2 * time.Second}, {WarnAfter: -1}} {
		if err := rowlock.Tx(t.Context(), driver.Beginner[int](nil), accounts, []string{"a"}, o, nil); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, r := range []rowlock.Rows{{Mode: 9}, {Wait: -1}, {Mode: rowlock.NoWait, Wait: 1}} {
		if _, err := r.Clause(driver.Postgres); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for want, r := range map[string]rowlock.Rows{
		"FOR UPDATE":             {},
		"FOR UPDATE NOWAIT":      {Mode: rowlock.NoWait},
		"FOR UPDATE SKIP LOCKED": {Mode: rowlock.SkipLocked},
		"FOR UPDATE WAIT 2":      {Wait: 1001 * time.Millisecond},
	} {
		if got, err := r.Clause(driver.MariaDB); got != want || err != nil {
			t.Errorf("%+v: %q, %v", r, got, err)
		}
	}
}

func testTooMany(t *testing.T, w world) {
	w.in(t, func(ctx context.Context, tx driver.SQL) {
		for _, keys := range [][]string{nil, make([]string, rowlock.MaxKeys+1)} {
			if _, err := rowlock.Lock(ctx, tx, accounts, keys...); interlock.Kind(err) != interlock.Bug {
				t.Errorf("%d keys: %v", len(keys), err)
			}
		}
		if _, err := rowlock.Lock(ctx, tx, rowlock.Rows{Table: "no.such.table", Key: "id"}, "a"); !errors.Is(err, interlock.ErrName) {
			t.Errorf("a table's name with two dots: %v", err)
		}
	})
}
