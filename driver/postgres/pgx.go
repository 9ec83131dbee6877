package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
)

// rollbackTimeout bounds a rollback, whatever the caller's context says. If it
// is not enough the connection is closed, which rolls back as well.
const rollbackTimeout = 5 * time.Second

// Tx lends a transaction that the user began and ends. It is as safe for
// concurrent use as tx is: not at all.
func Tx(tx pgx.Tx) driver.SQL { return pgxSQL{tx} }

// Pool begins transactions on the user's pool, with the pool's own settings.
func Pool(pool *pgxpool.Pool) driver.BeginnerAt[pgx.Tx] { return pgxPool{pool} }

// Create creates tables of Interlock in one transaction, such as a fence.Table, unless they
// exist. It is [driver.Create] on the pool.
func Create(ctx context.Context, pool *pgxpool.Pool, tables ...driver.Creator) error {
	return driver.Create(ctx, Pool(pool), tables...)
}

type pgxSQL struct{ tx pgx.Tx }

func (s pgxSQL) Dialect() driver.Dialect { return driver.Postgres }

func (s pgxSQL) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := s.tx.Exec(ctx, query, args...)
	if err != nil {
		return 0, failed(ctx, inStatement, err)
	}
	return tag.RowsAffected(), nil
}

func (s pgxSQL) Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error {
	rows, err := s.tx.Query(ctx, query, args...)
	if err != nil {
		return failed(ctx, inStatement, err)
	}
	defer rows.Close()
	return eachRow(ctx, rows, each)
}

// rows are those of pgx or of database/sql.
type rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func eachRow(ctx context.Context, r rows, each func(scan func(dest ...any) error) error) error {
	for r.Next() {
		if err := each(r.Scan); err != nil {
			return err
		}
	}
	return failed(ctx, inStatement, r.Err())
}

type pgxPool struct{ pool *pgxpool.Pool }

func (p pgxPool) Begin(ctx context.Context) (driver.Tx[pgx.Tx], error) {
	return p.BeginAt(ctx, driver.SessionIsolation)
}

func (p pgxPool) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[pgx.Tx], error) {
	var options pgx.TxOptions
	if level != driver.SessionIsolation {
		options.IsoLevel = pgx.TxIsoLevel(level.String())
	}
	tx, err := p.pool.BeginTx(ctx, options)
	if err != nil {
		return nil, failed(ctx, inBegin, err)
	}
	return pgxTx{pgxSQL{tx}}, nil
}

// acquire takes a connection of the pool until bounded ends, which ends with ctx or earlier. If it fails,
// nothing was sent.
func acquire(ctx, bounded context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := pool.Acquire(bounded)
	if err != nil {
		return nil, failed(ctx, inBegin, fmt.Errorf("no connection of the pool: %w", err))
	}
	return conn, nil
}

// Autocommit sends each statement between BEGIN and COMMIT, all in one request.
func (p pgxPool) Autocommit(level driver.Isolation) driver.SQL { return single{p.pool, level} }

// single runs statements that are transactions of their own.
type single struct {
	pool  *pgxpool.Pool
	level driver.Isolation
}

var _ driver.Autocommitter = pgxPool{}

func (a single) Dialect() driver.Dialect { return driver.Postgres }

// SendsArrays marks a client that sends slices as arrays; see sqltable.Arrays.
func (a single) SendsArrays() {}

func (a single) Exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	err = a.send(ctx, query, args, func(r pgx.BatchResults) error {
		tag, err := r.Exec()
		affected = tag.RowsAffected()
		return err
	})
	return affected, err
}

func (a single) Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error {
	var refused error
	err := a.send(ctx, query, args, func(r pgx.BatchResults) error {
		rows, err := r.Query()
		if err != nil {
			return err
		}
		for rows.Next() && refused == nil {
			refused = each(rows.Scan)
		}
		rows.Close()
		return rows.Err()
	})
	return cmp.Or(err, refused)
}

// send runs a statement, whose answer read reads. A connection on which it failed is closed.
func (a single) send(ctx context.Context, query string, args []any, read func(pgx.BatchResults) error) error {
	conn, err := acquire(ctx, ctx, a.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	begin := "begin"
	if a.level != driver.SessionIsolation {
		begin += " isolation level " + a.level.String()
	}
	b := &pgx.Batch{}
	b.Queue(begin)
	b.Queue(query, args...)
	b.Queue("commit")
	r := conn.SendBatch(ctx, b)
	_, err = r.Exec()
	if err == nil {
		err = read(r)
	}
	at := inCommit
	if state := sqlState(nil); errors.As(err, &state) {
		at = inStatement // an answer to what precedes COMMIT
	}
	return failed(ctx, at, cmp.Or(err, r.Close()))
}

type pgxTx struct{ pgxSQL }

func (t pgxTx) Native() pgx.Tx { return t.tx }

func (t pgxTx) Classify(err error) error { return classify(err) }

func (t pgxTx) Commit(ctx context.Context) error {
	at := inCommit
	if ctx.Err() != nil || t.tx.Conn().IsClosed() {
		at = inUnsent // pgx then refuses before it sends anything
	}
	return failed(ctx, at, t.tx.Commit(ctx))
}

func (t pgxTx) Rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	err := t.tx.Rollback(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return failed(ctx, inRollback, err)
}

// boundTx changes settings for the rest of the transaction, and only to less.
const boundTx = `
select set_config(name, least(ms, nullif((extract(epoch from current_setting(name)::interval) * 1000)::bigint, 0))::text, true)
from (values ('idle_in_transaction_session_timeout', $1::bigint), ('lock_timeout', $2::bigint), ('statement_timeout', $2::bigint)) as b (name, ms)
where ms is not null`

// Bound shortens what the transaction may wait for; see driver.Tx. A COMMIT is bounded
// in what it waits for, and not in how long its deferred triggers run.
func (t pgxTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	return boundIn(ctx, t, idle, statement)
}

func boundIn(ctx context.Context, tx driver.SQL, idle, statement time.Duration) error {
	var longest *int64
	if statement > 0 {
		ms := timeout(statement)
		longest = &ms
	}
	_, err := tx.Exec(ctx, boundTx, timeout(idle), longest)
	return err
}

// timeout is d in milliseconds, as a timeout of the server: at least 1, since 0
// is none.
func timeout(d time.Duration) int64 { return min(max(1, d.Milliseconds()), math.MaxInt32) }
