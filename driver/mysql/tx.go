package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver"
)

// rollbackTimeout bounds a ROLLBACK without an answer.
const rollbackTimeout = 5 * time.Second

// Tx lends a transaction that the user begins and ends. After a Retryable error the server has undone
// the transaction or a part of it: the result refuses further statements, and the user must roll back.
func Tx(tx *sql.Tx) driver.SQL { return &lent{at: tx} }

// DB returns a value that begins transactions on the user's database, with its settings. Each
// transaction must end by Commit or Rollback; the end of the context of Begin does not end it.
func DB(db *sql.DB) driver.BeginnerAt[*sql.Tx] { return pool{db} }

// Create creates tables of Interlock, such as a fence.Table, unless they exist. It is
// [driver.Create] on the database.
func Create(ctx context.Context, db *sql.DB, tables ...driver.Creator) error {
	return driver.Create(ctx, DB(db), tables...)
}

// lent is driver.SQL. It records that the transaction has failed, because the server
// does not.
type lent struct {
	at querier

	mu     sync.Mutex
	failed error
}

func (s *lent) Dialect() driver.Dialect { return driver.MariaDB }

func (s *lent) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	res, err := s.at.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, s.note(ctx, err)
	}
	n, err := res.RowsAffected()
	return n, s.note(ctx, err)
}

func (s *lent) Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	rows, err := s.at.QueryContext(ctx, query, args...)
	if err != nil {
		return s.note(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	// The server commits or fails after it has sent the rows.
	return s.note(ctx, rows.Err())
}

// usable refuses statements after a failure.
func (s *lent) usable(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.failed {
	case nil:
		return nil
	case sql.ErrTxDone:
		return failed(ctx, inStatement, s.failed)
	}
	return failed(ctx, inStatement, fmt.Errorf("%w: %w", errFailedBefore, s.failed))
}

// note classifies an error of a statement, and stores the text of one that ends the transaction,
// without its kind.
func (s *lent) note(ctx context.Context, err error) error {
	if err != nil && dooms(err) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = errors.New(err.Error())
	}
	return failed(ctx, inStatement, err)
}

type pool struct{ db *sql.DB }

func (p pool) Begin(ctx context.Context) (driver.Tx[*sql.Tx], error) {
	return p.BeginAt(ctx, driver.SessionIsolation)
}

func (p pool) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[*sql.Tx], error) {
	// At the end of ctx, database/sql would roll back by itself, and return the session
	// to the pool with the settings of Bound.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	tx, err := p.db.BeginTx(life, &sql.TxOptions{Isolation: level.Standard()})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, failed(ctx, inBegin, err)
	}
	return &begun{lent: lent{at: tx}, tx: tx, end: end}, nil
}

// begun ends its transaction by its own statements, because those of database/sql take no context, and
// the client waits for their answers without a bound. Afterwards end informs database/sql, whose
// rollback then has no effect.
type begun struct {
	lent
	tx    *sql.Tx
	end   context.CancelFunc
	over  bool
	bound bool
}

func (t *begun) Native() *sql.Tx { return t.tx }

func (t *begun) Classify(err error) error { return classify(err) }

// bind stores the session's settings in variables, marks the transaction by a savepoint, and runs
// one more statement. Without autocommit, a statement after the server has undone the transaction
// begins another one, which is not committed.
const bind = `begin not atomic
	set @interlock_idle = @@session.idle_transaction_timeout, @interlock_idle_write = @@session.idle_write_transaction_timeout,
		@interlock_idle_read = @@session.idle_readonly_transaction_timeout, @interlock_statement = @@session.max_statement_time,
		@interlock_autocommit = @@session.autocommit;
	set session autocommit = 0;
	savepoint interlock;
	%s;
end`

// limit sets each to the lower of its value and the new one; 0 means none. The first one counts only where
// the other two are 0.
const limit = `set session
	idle_transaction_timeout = if(@interlock_idle = 0, %[1]d, least(@interlock_idle, %[1]d)),
	idle_write_transaction_timeout = least(if(@interlock_idle_write = 0, if(@interlock_idle = 0, %[1]d, @interlock_idle), @interlock_idle_write), %[1]d),
	idle_readonly_transaction_timeout = least(if(@interlock_idle_read = 0, if(@interlock_idle = 0, %[1]d, @interlock_idle), @interlock_idle_read), %[1]d)`

const limitStatement = `,
	max_statement_time = if(@interlock_statement = 0, %[1]s, least(@interlock_statement, %[1]s))`

// unbind restores the session's settings.
const unbind = `set session idle_transaction_timeout = @interlock_idle, idle_write_transaction_timeout = @interlock_idle_write,
		idle_readonly_transaction_timeout = @interlock_idle_read, max_statement_time = @interlock_statement,
		autocommit = @interlock_autocommit`

// The ends of a session whose settings were changed, in one request: a transaction without its
// bound must not idle before its COMMIT.
const (
	commitBound   = "begin not atomic\n\trelease savepoint interlock;\n\tcommit;\n\t" + unbind + ";\nend"
	rollbackBound = "begin not atomic\n\trollback;\n\t" + unbind + ";\nend"
)

// Bound makes the server end the session if it sends nothing for idle, in whole
// seconds, and a statement that runs for longer than statement; see driver.Tx.
func (t *begun) Bound(ctx context.Context, idle, statement time.Duration) error {
	seconds := min(max(1, int64(idle/time.Second)), math.MaxInt32)
	query := fmt.Sprintf(limit, seconds)
	if statement > 0 {
		query += fmt.Sprintf(limitStatement, fraction(statement))
	}
	if !t.bound {
		t.bound = true
		query = fmt.Sprintf(bind, query)
	}
	_, err := t.Exec(ctx, query)
	return err
}

// fraction returns d in seconds and microseconds, the format of max_statement_time: at least a
// millisecond, since 0 means none, and at most a year.
func fraction(d time.Duration) string {
	d = min(max(time.Millisecond, d), 365*24*time.Hour)
	return fmt.Sprintf("%d.%06d", d/time.Second, d%time.Second/time.Microsecond)
}

// finish refuses further statements, which database/sql would still send until it notices the
// end of its context.
func (t *begun) finish() {
	t.over = true
	t.mu.Lock()
	t.failed = sql.ErrTxDone
	t.mu.Unlock()
	t.end()
}

func (t *begun) Commit(ctx context.Context) error {
	if t.over {
		return failed(ctx, inStatement, sql.ErrTxDone)
	}
	err := t.usable(ctx)
	if err == nil && ctx.Err() != nil {
		err = fail.Unsent(ctx, inCommit.String(), "")
	}
	if err != nil { // COMMIT is not sent
		_ = t.Rollback(ctx)
		return err
	}
	query := "commit"
	if t.bound {
		query = commitBound
	}
	_, err = t.tx.ExecContext(ctx, query)
	var native *client.MySQLError
	if errors.As(err, &native) { // an answer: the session continues
		_ = t.Rollback(ctx)
		if native.Number == noSavepoint {
			err = errReplaced
		}
	}
	t.finish()
	return failed(ctx, inCommit, err)
}

func (t *begun) Rollback(ctx context.Context) error {
	if t.over {
		return nil
	}
	defer t.finish()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	query := "rollback"
	if t.bound {
		query = rollbackBound
	}
	_, err := t.tx.ExecContext(ctx, query)
	switch {
	case err == nil, errors.Is(err, sql.ErrTxDone):
		return nil
	case t.bound: // the session must not return to the pool with these settings
		_, _ = t.tx.ExecContext(ctx, "kill connection_id()")
	}
	return failed(ctx, inRollback, err)
}

// atomic has the level and the statements. An error before COMMIT is rolled back, and becomes a row; that
// of COMMIT is returned.
const atomic = `begin not atomic
declare v_done, v_commit int default 0;
declare v_value bigint;
declare exit handler for sqlexception begin
	rollback;
	if v_commit then resignal; end if;
	select 0, null;
end;
set transaction isolation level %s;
start transaction;
%s
if v_done then set v_commit = 1; commit; else rollback; end if;
select v_done, v_value;
end`

const parseError = 1064

var _ driver.Atomic = pool{}

// Atomically runs a transaction in one request; see [driver.Atomic].
func (p pool) Atomically(ctx context.Context, level driver.Isolation, statements string) (done bool, value *int64, err error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return false, nil, failed(ctx, inBegin, err)
	}
	defer conn.Close()
	query := fmt.Sprintf(atomic, strings.ToUpper(level.Standard().String()), statements)
	err = one(ctx, conn, query, nil, &done, &value)
	switch {
	case err == nil:
		return done, value, nil
	case isNumber(err, parseError):
		return false, nil, nil
	}
	// The transaction may be open: the session must not return to the pool.
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	at := inStatement
	if native := new(client.MySQLError); errors.As(err, &native) {
		at = inCommit
	}
	return false, nil, failed(ctx, at, err)
}
