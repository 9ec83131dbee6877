package postgres

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// StdTx lends a transaction that the user began and ends through database/sql.
func StdTx(tx *sql.Tx) driver.SQL { return stdSQL{tx} }

// DB begins transactions on the user's database, with its own settings. When
// the context given to Begin ends, database/sql rolls the transaction back.
func DB(db *sql.DB) driver.BeginnerAt[*sql.Tx] { return stdDB{db} }

type stdSQL struct{ tx *sql.Tx }

func (s stdSQL) Dialect() driver.Dialect { return driver.Postgres }

func (s stdSQL) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := s.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, failed(ctx, inStatement, err)
	}
	n, err := res.RowsAffected()
	return n, failed(ctx, inStatement, err)
}

func (s stdSQL) Query(ctx context.Context, query string, args []any, each func(scan func(dest ...any) error) error) error {
	rows, err := s.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return failed(ctx, inStatement, err)
	}
	defer rows.Close()
	return eachRow(ctx, rows, each)
}

type stdDB struct{ db *sql.DB }

func (d stdDB) Begin(ctx context.Context) (driver.Tx[*sql.Tx], error) {
	return d.BeginAt(ctx, driver.SessionIsolation)
}

func (d stdDB) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[*sql.Tx], error) {
	life, end := context.WithCancel(ctx)
	tx, err := d.db.BeginTx(life, &sql.TxOptions{Isolation: level.Standard()})
	if err != nil {
		end()
		return nil, failed(ctx, inBegin, err)
	}
	return stdTx{stdSQL: stdSQL{tx}, end: end}, nil
}

// stdTx ends the context of its transaction to bound a Commit or Rollback,
// which take none.
type stdTx struct {
	stdSQL
	end context.CancelFunc
}

func (t stdTx) Native() *sql.Tx { return t.tx }

func (t stdTx) Classify(err error) error { return classify(err) }

// Bound shortens what the transaction may wait for; see driver.Tx.
func (t stdTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	return boundIn(ctx, t, idle, statement)
}

func (t stdTx) Commit(ctx context.Context) error {
	defer t.end()
	defer context.AfterFunc(ctx, t.end)()
	return failed(ctx, inCommit, t.tx.Commit())
}

func (t stdTx) Rollback(ctx context.Context) error {
	defer t.end()
	defer time.AfterFunc(rollbackTimeout, t.end).Stop()
	err := t.tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return failed(ctx, inRollback, err)
}
