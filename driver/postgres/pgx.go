package postgres

import (
	"context"
	"errors"
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
