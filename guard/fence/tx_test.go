package fence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func nothing(context.Context, driver.SQL) error { return nil }

func testBoundedWait(t *testing.T, w world) {
	first := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), first, "alice", token(1), "first"))

	begun := time.Now()
	err := w.tx(t.Context(), w.table, grant(2, time.Second), "alice", nothing)
	if took := time.Since(begun); took > bound || took < 900*time.Millisecond {
		t.Errorf("waited %v with a claim of a second", took)
	}
	wantKind(t, err, interlock.Definite, interlock.ErrExpired)

	// The user's own bound is shorter, and stays.
	impatient := w.reach(t, databases.With(w.URL, w.impatience))
	err = impatient.tx(t.Context(), w.table, grant(2, bound), "alice", nothing)
	wantKind(t, err, interlock.Retryable, interlock.ErrHeld)
}

// testStuck simulates a holder that stops between read and write: its side of the
// connection is silent until the test ends that.
func testStuck(t *testing.T, w world) {
	const ttl = 2 * time.Second
	for name, awake := range map[string]body{
		"write": func(ctx context.Context, db driver.SQL) error {
			_, err := db.Exec(context.WithoutCancel(ctx), `update account set balance = 0 where id = 'alice'`)
			return err
		},
		"commit": nothing,
	} {
		read, wake := make(chan struct{}), make(chan struct{})
		old := grant(1, ttl)
		granted := time.Now()
		stopped := testbed.Later(t, bound, func() error {
			return w.tx(t.Context(), w.table, old, name, func(ctx context.Context, db driver.SQL) error {
				if _, err := databases.Value[int64](ctx, db, `select balance from account where id = 'alice'`); err != nil {
					return err
				}
				close(read)
				<-wake
				return awake(ctx, db)
			})
		})
		testbed.Receive(t, read, "word that the old holder has read")
		// The next holder enters as soon as the old claim has ended.
		time.Sleep(time.Until(granted.Add(ttl)))
		begun := time.Now()
		ok(t, w.tx(t.Context(), w.table, grant(2, bound), name, func(ctx context.Context, db driver.SQL) error {
			_, err := db.Exec(ctx, `update account set balance = balance - 1 where id = 'alice'`)
			return err
		}))
		if took := time.Since(begun); took > bound/2 { // well before its own claim ends
			t.Errorf("the next holder was blocked for %v after the claim had ended", took)
		}
		close(wake)
		wantKind(t, stopped(), interlock.Definite, interlock.ErrExpired)
		wantStale(t, w.enter(t, w.table, name, token(1)), token(2), token(1))
	}
	if got := w.text(t, `select concat(balance) from account where id = 'alice'`); got != "98" {
		t.Errorf("balance %s", got)
	}
}

// testIdleSession lets a session idle for too long under a valid claim: the server
// ends it, so nothing may be reported as committed.
func testIdleSession(t *testing.T, w world) {
	c := grant(1, 3*time.Second)
	err := w.tx(t.Context(), w.table, c, "alice", func(ctx context.Context, db driver.SQL) error {
		c.Renew(bound)
		if _, err := db.Exec(ctx, `update account set balance = 0 where id = 'alice'`); err != nil {
			return err
		}
		id, err := databases.Value[int64](ctx, db, w.session)
		ok(t, err)
		testbed.Eventually(t, "the session ends", bound, func() bool { return w.text(t, fmt.Sprintf(w.sessions, id)) == "0" })
		return nil
	})
	if err == nil || interlock.Kind(err) == interlock.Definite {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
	if got := w.text(t, `select concat(balance) from account where id = 'alice'`); got != "100" {
		t.Errorf("balance %s", got)
	}
}

func testLongStatement(t *testing.T, w world) {
	begun := time.Now()
	err := w.tx(t.Context(), w.table, grant(1, 2*time.Second), "alice", func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, w.sleep)
		return err
	})
	wantKind(t, err, interlock.Definite, interlock.ErrExpired)
	var native interface{ SQLState() string }
	if took := time.Since(begun); took > bound || !errors.As(err, &native) || native.SQLState() != w.timedOut {
		t.Errorf("after %v: %v", took, err)
	}
}

// testSettings tests the settings of PostgreSQL; MariaDB's driver resets its own.
func testSettings(t *testing.T, w world) {
	if w.Dialect != driver.Postgres {
		return
	}
	const show = `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
		where name in ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout')`
	for _, tt := range []struct {
		options   string
		remaining time.Duration
		inside    [3]int64 // idle, lock, statement: at most so many ms, and at least nine tenths
		outside   string
	}{
		{"", 30 * time.Second, [3]int64{20_000, 30_000, 30_000},
			"idle_in_transaction_session_timeout=0 lock_timeout=0 statement_timeout=0"},
		{"idle_in_transaction_session_timeout=5s&lock_timeout=1min&statement_timeout=2h", 30 * time.Second, [3]int64{5_000, 30_000, 30_000},
			"idle_in_transaction_session_timeout=5000 lock_timeout=60000 statement_timeout=7200000"},
		{"", 100 * 24 * time.Hour, [3]int64{1<<31 - 1, 1<<31 - 1, 1<<31 - 1},
			"idle_in_transaction_session_timeout=0 lock_timeout=0 statement_timeout=0"},
	} {
		c := w.reach(t, databases.With(w.URL, tt.options))
		var inside string
		ok(t, c.tx(t.Context(), w.table, grant(1, tt.remaining), "alice", func(ctx context.Context, db driver.SQL) (err error) {
			inside, err = databases.Value[string](ctx, db, show)
			return err
		}))
		var got [3]int64
		_, err := fmt.Sscanf(inside, "idle_in_transaction_session_timeout=%d lock_timeout=%d statement_timeout=%d", &got[0], &got[1], &got[2])
		ok(t, err)
		for i := range got {
			if got[i] > tt.inside[i] || got[i] < tt.inside[i]*9/10 {
				t.Errorf("inside: %s, want %v", inside, tt.inside)
			}
		}
		if got := c.text(t, show); got != tt.outside {
			t.Errorf("outside: %s, want %s", got, tt.outside)
		}
	}
}

func testRollsBack(t *testing.T, w world) {
	own := errors.New("no money")
	spend := func(ctx context.Context, db driver.SQL) {
		if _, err := db.Exec(ctx, `update account set balance = 0`); err != nil {
			t.Error(err)
		}
	}
	err := w.tx(t.Context(), w.table, grant(5, bound), "alice", func(ctx context.Context, db driver.SQL) error {
		spend(ctx, db)
		return own
	})
	if err != own {
		t.Errorf("the function's error became %v", err)
	}
	func() {
		defer func() {
			if recover() != "oops" {
				t.Error("the panic did not come through")
			}
		}()
		_ = w.tx(t.Context(), w.table, grant(5, bound), "alice", func(ctx context.Context, db driver.SQL) error {
			spend(ctx, db)
			panic("oops")
		})
	}()
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	err = w.tx(ctx, w.table, grant(5, bound), "alice", func(ctx context.Context, db driver.SQL) error {
		spend(ctx, db)
		cancel(gaveUp)
		return nil
	})
	wantKind(t, err, interlock.Definite, gaveUp)
	ok(t, w.tx(t.Context(), w.table, grant(4, bound), "alice", nothing)) // no mark and no lock is left
	if got := w.text(t, `select concat(sum(balance)) from account`); got != "200" {
		t.Errorf("balances %s", got)
	}
}

func testEnded(t *testing.T, w world) {
	lost := grant(1, bound)
	lost.End(interlock.ErrLost)
	for _, tt := range []struct {
		claim *claim
		cause error
	}{{grant(1, -time.Second), interlock.ErrExpired}, {lost, interlock.ErrLost}} {
		err := w.tx(t.Context(), w.table, tt.claim, "alice", func(context.Context, driver.SQL) error {
			t.Error("ran under a claim that has ended")
			return nil
		})
		wantKind(t, err, interlock.Definite, tt.cause)
	}
	if m := w.mark(t, "alice"); m.Token != 0 {
		t.Errorf("the mark was raised: %+v", m)
	}
	// The claim ends while the function runs and does not notice.
	c := grant(2, bound)
	err := w.tx(t.Context(), w.table, c, "alice", func(context.Context, driver.SQL) error {
		c.End(interlock.ErrSessionEnded)
		return nil
	})
	wantKind(t, err, interlock.Definite, interlock.ErrSessionEnded)
	if m := w.mark(t, "alice"); m.Token != 0 {
		t.Errorf("it was committed: %+v", m)
	}
}

// ending ends the claim while it waits to enter.
type ending struct {
	fence.Marks
	claim *claim
}

func (m ending) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	err := m.Marks.Enter(ctx, db, resource, token, source)
	m.claim.Renew(0)
	return err
}

func testEndedByEntering(t *testing.T, w world) {
	c := grant(1, bound)
	err := w.tx(t.Context(), ending{w.table, c}, c, "alice", func(context.Context, driver.SQL) error {
		t.Error("ran under a claim that had ended while it waited")
		return nil
	})
	wantKind(t, err, interlock.Definite, interlock.ErrExpired)
	if m := w.mark(t, "alice"); m.Token != 0 {
		t.Errorf("the mark was raised: %+v", m)
	}
}

func testContext(t *testing.T, w world) {
	c := grant(1, bound)
	err := w.tx(t.Context(), w.table, c, "alice", func(ctx context.Context, db driver.SQL) error {
		time.AfterFunc(50*time.Millisecond, func() { c.End(interlock.ErrLost) })
		_, err := db.Exec(ctx, w.sleep)
		if !errors.Is(context.Cause(ctx), interlock.ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		return err
	})
	if !errors.Is(err, interlock.ErrLost) {
		t.Errorf("%v does not tell how the claim ended", err)
	}
}

// behindProxy returns w through a proxy.
func (w world) behindProxy(t *testing.T) (world, *testbed.Proxy) {
	t.Helper()
	proxy := testbed.NewProxy(t, w.Server.Addr())
	return w.reach(t, strings.Replace(w.URL, w.Server.Addr(), proxy.Addr(), 1)), proxy
}

// cutting loses the reply to Enter.
type cutting struct {
	fence.Marks
	proxy *testbed.Proxy
}

func (m cutting) Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error {
	m.proxy.CutAfter(0)
	return m.Marks.Enter(ctx, db, resource, token, source)
}

func testLostEnter(t *testing.T, w world) {
	c, proxy := w.behindProxy(t)
	err := c.tx(t.Context(), cutting{w.table, proxy}, grant(1, bound), "alice", func(context.Context, driver.SQL) error {
		t.Error("ran without knowing whether it had entered")
		return nil
	})
	if wantKind(t, err, interlock.Retryable, nil); errors.Is(err, interlock.ErrUncertain) {
		t.Errorf("%v: COMMIT was never sent", err)
	}
	ok(t, c.tx(t.Context(), w.table, grant(1, bound), "alice", nothing))
}

// testBoundAfterWait lets a holder wait in Enter until the bound set before exceeds
// the time left of its claim.
func testBoundAfterWait(t *testing.T, w world) {
	first := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), first, "alice", token(1), "first"))
	c := grant(2, bound) // which bounds idle time to two thirds of it
	var remaining time.Duration
	var idle int64
	second := testbed.Later(t, bound, func() error {
		return w.tx(t.Context(), w.table, c, "alice", func(ctx context.Context, db driver.SQL) (err error) {
			remaining = c.Remaining()
			idle, err = databases.Value[int64](ctx, db, w.idleLimit)
			c.Renew(bound)
			return err
		})
	})
	w.blocked(t, 1)
	c.Renew(bound / 2) // as if the rest had been spent waiting
	ok(t, first.Commit(t.Context()))
	ok(t, second())
	if d := time.Duration(idle) * time.Millisecond; d > remaining {
		t.Errorf("it may idle for %v when %v remain", d, remaining)
	}
}

// TestRawErrorsAreClassified lets user code return the errors of pgx as they are.
func TestRawErrorsAreClassified(t *testing.T) {
	w := newWorld(t, databases.Open(t, testbed.Postgres(t), databases.Pgx))
	pool, err := pgxpool.New(t.Context(), w.URL)
	ok(t, err)
	defer pool.Close()
	w.Exec(t, `create table item (k int primary key)`)
	raw := func(query string, then ...string) error {
		return fence.Tx(t.Context(), postgres.Pool(pool), fence.Table{}, grant(1, bound), "r", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, query)
			for _, q := range then {
				_, err = tx.Exec(ctx, q)
			}
			return err
		})
	}
	ok(t, raw(`insert into item values (1)`))
	wantKind(t, raw(`insert into item values (1)`), interlock.Definite, nil)
	wantKind(t, raw(`do $$ begin raise exception sqlstate '40001'; end $$`), interlock.Retryable, nil)
	wantKind(t, raw(`select pg_terminate_backend(pg_backend_pid())`), interlock.Retryable, nil)
	wantKind(t, raw(`select pg_terminate_backend(pg_backend_pid())`, `select 1`), interlock.Retryable, nil)
	// An error that the function hides makes COMMIT fail.
	err = fence.Tx(t.Context(), postgres.Pool(pool), fence.Table{}, grant(1, bound), "r", func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, `insert into item values (1)`)
		return nil
	})
	wantKind(t, err, interlock.Definite, pgx.ErrTxCommitRollback)
}

// TestOutlasting tests work that takes longer than the time left of its claim at
// the beginning.
func TestOutlasting(t *testing.T) {
	eachWorld(t, func(t *testing.T, open func(*testing.T) world) {
		for what, test := range map[string]func(*testing.T, world){
			"a renewed claim waits to enter":       testRenewedClaimWaits,
			"a silent network ends with the claim": testSilentCommit,
			"a silent network ends while it lasts": testSilentCommitUnderRenewedClaim,
			"entering ends on a silent network":    testSilentEnter,
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				test(t, open(t))
			})
		}
	})
}

// testRenewedClaimWaits lets a renewed claim wait for a resource for longer than it
// had left: it is still valid, and may retry.
func testRenewedClaimWaits(t *testing.T, w world) {
	first := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), first, "alice", token(1), "first"))
	c := grant(2, 3*time.Second)
	waited := testbed.Later(t, bound, func() error { return w.tx(t.Context(), w.table, c, "alice", nothing) })
	w.blocked(t, 1)
	c.Renew(time.Minute)
	wantKind(t, waited(), interlock.Retryable, nil)
	ok(t, first.Rollback(t.Context()))
	ok(t, w.tx(t.Context(), w.table, c, "alice", nothing))
}

// commit runs a transaction through proxy whose COMMIT is done, but not answered.
func (w world) commit(t *testing.T, c *claim) (result func() error) {
	t.Helper()
	behind, proxy := w.behindProxy(t)
	t.Cleanup(proxy.Heal) // so that the client need not wait for the end of its connection
	result = testbed.Later(t, bound, func() error {
		return behind.tx(context.Background(), w.table, c, "alice", func(ctx context.Context, db driver.SQL) error {
			_, err := db.Exec(ctx, `update account set balance = 7 where id = 'alice'`)
			proxy.DropReplies()
			return err
		})
	})
	testbed.Eventually(t, "the commit is done", bound, func() bool {
		return w.text(t, `select concat(balance) from account where id = 'alice'`) == "7"
	})
	return result
}

func testSilentCommit(t *testing.T, w world) {
	c := grant(1, time.Minute)
	result := w.commit(t, c)
	c.End(interlock.ErrLost)
	wantKind(t, result(), interlock.Uncertain, interlock.ErrLost)
}

// testSilentCommitUnderRenewedClaim: with a claim that never ends, the wait for a COMMIT
// is bounded by the time that the claim had left when it was sent.
func testSilentCommitUnderRenewedClaim(t *testing.T, w world) {
	c := grant(1, 4*time.Second)
	result := w.commit(t, c)
	c.Renew(time.Hour)
	err := result()
	if wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded); errors.Is(err, interlock.ErrExpired) {
		t.Errorf("%v: the claim is still valid", err)
	}
}

// renewing begins transactions, and renews the claim before.
type renewing struct {
	driver.BeginnerAt[driver.SQL]
	c *claim
}

func (r renewing) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	r.c.Renew(time.Hour)
	return r.BeginnerAt.Begin(ctx)
}

// testSilentEnter: while a claim is renewed on another connection, BEGIN and Enter wait on one that is
// silent for no longer than about the time that the claim had left.
func testSilentEnter(t *testing.T, w world) {
	behind, proxy := w.behindProxy(t)
	t.Cleanup(proxy.Heal)
	ok(t, behind.tx(t.Context(), w.table, grant(1, bound), "alice", nothing))
	proxy.DropReplies()
	c := grant(2, time.Second)
	behind.BeginnerAt = renewing{behind.BeginnerAt, c}
	waited := testbed.Later(t, bound, func() error { return behind.tx(context.Background(), w.table, c, "alice", nothing) })
	wantKind(t, waited(), interlock.Retryable, nil)
}
