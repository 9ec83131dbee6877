package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound is how long a test waits for what must happen.
const bound = 20 * time.Second

// eachClient runs test with pgx and with database/sql, each in a database of its own.
func eachClient(t *testing.T, test func(t *testing.T, db *databases.DB)) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) { test(t, open(t)) }, databases.Pgx, databases.PgxStd)
}

// begun returns a transaction that is rolled back after the test.
func begun(t *testing.T, db *databases.DB) driver.Tx[driver.SQL] {
	t.Helper()
	return db.Begun(t, driver.SessionIsolation)
}

func mustExec(t *testing.T, x driver.SQL, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := x.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// number is the single number that query gives.
func number(t *testing.T, x driver.SQL, query string, args ...any) int64 {
	t.Helper()
	n, err := databases.Value[int64](t.Context(), x, query, args...)
	testbed.OK(t, err)
	return n
}

func wantKind(t *testing.T, err error, kind interlock.ErrorKind, state string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	var native *pgconn.PgError
	code := ""
	if errors.As(err, &native) {
		code = native.Code
	}
	if got := interlock.Kind(err); got != kind || state != "*" && code != state {
		t.Errorf("%v: kind %v with SQLSTATE %q, want %v with %q", err, got, code, kind, state)
	}
}

func TestKindsByTheServer(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		db.Exec(t, `create table k (k int primary key)`, `insert into k values (1)`)
		t.Run("constraint", func(t *testing.T) {
			_, err := begun(t, db).Exec(t.Context(), `insert into k values (1)`)
			wantKind(t, err, interlock.Definite, "23505")
		})
		t.Run("commit of what failed", func(t *testing.T) {
			x := begun(t, db)
			if _, err := x.Exec(t.Context(), `select 1/0`); err == nil {
				t.Fatal("divided by zero")
			}
			wantKind(t, x.Commit(t.Context()), interlock.Definite, "")
		})
		t.Run("bad statement in a query", func(t *testing.T) {
			err := begun(t, db).Query(t.Context(), `select from nowhere`, nil, nil)
			wantKind(t, err, interlock.Definite, "42P01")
		})
	})
}

func TestTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		t.Run("terminated while a statement runs", func(t *testing.T) {
			x := begun(t, db)
			_, err := x.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
			wantKind(t, err, interlock.Retryable, "57P01")
		})
		for _, after := range []string{"idle time-out", "termination"} {
			for _, next := range []string{"statement", "commit"} {
				t.Run(after+", then a "+next, func(t *testing.T) {
					x := begun(t, db)
					pid := number(t, x, `select pg_backend_pid()`)
					if after == "termination" {
						db.Exec(t, fmt.Sprintf(`select pg_terminate_backend(%d)`, pid))
					} else {
						mustExec(t, x, `set local idle_in_transaction_session_timeout = '10ms'`)
					}
					testbed.Eventually(t, "the session ends", bound, func() bool {
						return databases.One[int64](t, db, `select count(*) from pg_stat_activity where pid = $1::bigint`, pid) == 0
					})
					afterTheEnd(t, x, next, after)
				})
			}
		}
	})
}

// afterTheEnd uses a transaction whose session is gone. The server's last words
// may be lost on the way, and then it is not known what ended it.
func afterTheEnd(t *testing.T, x driver.Tx[driver.SQL], next, after string) {
	t.Helper()
	var err error
	if next == "commit" {
		err = x.Commit(t.Context())
	} else {
		_, err = x.Exec(t.Context(), `select 1`)
	}
	want := interlock.Retryable
	if next == "commit" && after == "termination" {
		want = interlock.Uncertain
	}
	var native *pgconn.PgError
	known := errors.As(err, &native)
	switch kind := interlock.Kind(err); {
	case err == nil:
		t.Error("it went on")
	case known && kind != want, !known && kind == interlock.Definite:
		t.Errorf("%v: kind %v, want %v", err, kind, want)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		x := begun(t, db)
		serialization := fmt.Errorf("book: %w", &pgconn.PgError{Code: "40001"})
		wantKind(t, x.Classify(serialization), interlock.Retryable, "40001")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "57P01"}), interlock.Retryable, "57P01")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "23505"}), interlock.Definite, "23505")
		for _, resource := range []string{"53000", "53100", "53200", "53300"} {
			wantKind(t, x.Classify(&pgconn.PgError{Code: resource}), interlock.Retryable, resource)
		}
		wantKind(t, x.Classify(&pgconn.PgError{Code: "53400"}), interlock.Definite, "53400")
		wantKind(t, x.Classify(pgconn.ErrConnClosed), interlock.Retryable, "")
		for _, own := range []error{nil, errors.New("no money"), context.Canceled, sql.ErrNoRows,
			&interlock.Error{Op: "x", Kind: interlock.Bug, Err: pgconn.ErrConnClosed}} {
			if got := x.Classify(own); got != own {
				t.Errorf("%v became %v", own, got)
			}
		}
	})
}

// deferring has a table whose trigger runs at COMMIT, and does what the row says.
var deferring = []string{
	`create table done (k int primary key, how text, wish text)`,
	`create table told (k int primary key, v int)`, `insert into told values (1, 0), (2, 0)`,
	`create function at_commit() returns trigger language plpgsql as $$
		begin
			case new.how
			when 'raise' then raise exception 'raised' using errcode = new.wish;
			when 'wait' then perform pg_sleep(60);
			when 'update' then update told set v = v + 1 where k = new.wish::int;
			else null;
			end case;
			return null;
		end $$`,
	`create constraint trigger at_commit after insert on done deferrable initially deferred for each row execute function at_commit()`,
}

// TestAnswersToCommit: of what the server says to COMMIT, only what can be said of a
// transaction that was undone is not an unknown outcome.
func TestAnswersToCommit(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		db.Exec(t, deferring...)
		for state, want := range map[string]interlock.ErrorKind{
			"40001": interlock.Retryable, "40P01": interlock.Retryable, "25P03": interlock.Retryable,
			"23503": interlock.Definite, "23505": interlock.Definite, "23P01": interlock.Definite, "22012": interlock.Definite,
			"42501": interlock.Definite, "P0001": interlock.Definite, "MY001": interlock.Definite, "40002": interlock.Definite,
			"40003": interlock.Uncertain, "25P04": interlock.Uncertain, "55P03": interlock.Uncertain, "57014": interlock.Uncertain,
			"57P01": interlock.Uncertain, "57P02": interlock.Uncertain, "08006": interlock.Uncertain, "08P01": interlock.Uncertain,
			"53100": interlock.Uncertain, "53200": interlock.Uncertain, "53300": interlock.Uncertain,
			"58030": interlock.Uncertain, "XX000": interlock.Uncertain,
		} {
			x := begun(t, db)
			mustExec(t, x, `insert into done values (1, 'raise', '`+state+`')`)
			err := x.Commit(t.Context())
			wantKind(t, err, want, state)
			if errors.Is(err, interlock.ErrHeld) {
				t.Errorf("%v: it says that somebody else has it, and is not known to have done nothing", err)
			}
		}
		if n := rowsDone(t, db); n != 0 {
			t.Errorf("%d rows of transactions that failed", n)
		}
	})
}

// TestCommitThatWaits ends a COMMIT while a deferred trigger keeps it from being done:
// what was undone for certain is only known of a deadlock.
func TestCommitThatWaits(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		db.Exec(t, deferring...)
		for _, tt := range []struct {
			name, before, insert, signal string
			kind                         interlock.ErrorKind
			state                        string
		}{
			{"cancelled", ``, `'wait', ''`, `pg_cancel_backend`, interlock.Uncertain, "57014"},
			{"terminated", ``, `'wait', ''`, `pg_terminate_backend`, interlock.Uncertain, "57P01"},
			{"lock time-out", `set local lock_timeout = '20ms'`, `'update', '1'`, ``, interlock.Uncertain, "55P03"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				mustExec(t, begun(t, db), `update told set v = v where k = 1`)
				x := begun(t, db)
				if tt.before != "" {
					mustExec(t, x, tt.before)
				}
				mustExec(t, x, `insert into done values (1, `+tt.insert+`)`)
				var err error
				if tt.signal == "" {
					err = x.Commit(t.Context())
				} else {
					err = signalCommit(t, x, db, tt.signal, `wait_event = 'PgSleep'`)
				}
				wantKind(t, err, tt.kind, tt.state)
			})
		}
		t.Run("deadlock", func(t *testing.T) {
			answers := make(chan error, 2)
			var both [2]driver.Tx[driver.SQL]
			for i := range both {
				both[i] = begun(t, db)
				mustExec(t, both[i], `set local deadlock_timeout = '10ms'`, fmt.Sprintf(`update told set v = v where k = %d`, i+1),
					fmt.Sprintf(`insert into done values (%d, 'update', %d)`, i+1, 2-i))
			}
			for _, x := range both {
				go func() { answers <- x.Commit(t.Context()) }()
			}
			first, second := <-answers, <-answers
			if first != nil && second != nil {
				t.Errorf("both failed: %v, %v", first, second)
			}
			wantKind(t, errors.Join(first, second), interlock.Retryable, "40P01")
		})
		if n := rowsDone(t, db); n != 1 {
			t.Errorf("%d rows, want that of the one that won", n)
		}
	})
}

// TestCommitDoneAndAnErrorTold signals a session while it writes its commit record.
// The server obeys the signal when it logs how long that took: it has committed, and
// tells an error.
func TestCommitDoneAndAnErrorTold(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "fsync=on")
	for _, client := range []string{databases.Pgx, databases.PgxStd} {
		for signal, state := range map[string]string{`pg_cancel_backend`: "57014", `pg_terminate_backend`: "57P01"} {
			t.Run(client+"/"+signal, func(t *testing.T) {
				db := databases.Open(t, server, client)
				db.Exec(t, deferring...)
				testbed.Eventually(t, "the signal comes while the record is written", bound, func() bool {
					before := rowsDone(t, db)
					err := commitSignalled(t, db, signal, before)
					if err == nil {
						return false // it came too late, and met nothing
					}
					wantKind(t, err, interlock.Uncertain, state)
					return rowsDone(t, db) == before+1 // or it came too early
				})
			})
		}
	}
}

// commitSignalled commits a row, slowly, and signals the session meanwhile.
func commitSignalled(t *testing.T, db *databases.DB, signal string, k int64) error {
	t.Helper()
	x := begun(t, &databases.DB{BeginnerAt: db.Again(t)})
	mustExec(t, x, `set log_min_duration_statement = 0`, `set commit_siblings = 0`, `set commit_delay = 100000`,
		fmt.Sprintf(`insert into done values (%d, '', '')`, k))
	return signalCommit(t, x, db, signal, `true`)
}

// signalCommit commits, sends a signal to the session once the server is at it, and
// gives the answer.
func signalCommit(t *testing.T, x driver.Tx[driver.SQL], db *databases.DB, signal, where string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	pid := number(t, x, `select pg_backend_pid()`)
	answer := make(chan error, 1)
	go func() { answer <- x.Commit(ctx) }()
	for sent := false; !sent && len(answer) == 0; {
		sent = databases.One[int64](t, db, `select count(*) filter (where `+signal+`(pid)) from pg_stat_activity
			where pid = $1::bigint and query ilike 'commit%' and state = 'active' and `+where, pid) == 1
	}
	return <-answer
}

func rowsDone(t *testing.T, db *databases.DB) int64 {
	t.Helper()
	return databases.One[int64](t, db, `select count(*) from done`)
}

// TestCommitOnAClosedConnection commits what cannot be sent any more: pgx shows
// that it is so, database/sql does not.
func TestCommitOnAClosedConnection(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		proxy := testbed.NewProxy(t, db.Server.Addr())
		x := begun(t, db.Through(t, proxy))
		proxy.CutAfter(0)
		if _, err := x.Exec(t.Context(), `select 1`); err == nil {
			t.Fatal("the connection was not cut")
		}
		want := map[string]interlock.ErrorKind{databases.Pgx: interlock.Retryable, databases.PgxStd: interlock.Uncertain}[db.Client]
		wantKind(t, x.Commit(t.Context()), want, "")
	})
}
