package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// onPool is autocommit by pgx.
type onPool struct{ pool *pgxpool.Pool }

func (s onPool) exec(ctx context.Context, query string, args ...any) (int64, error) {
	if len(args) > 0 {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	tag, err := s.pool.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (s onPool) query(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := s.pool.Query(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return unclassified(rows, each)
}

// onDB is autocommit by database/sql.
type onDB struct{ db *sql.DB }

func (s onDB) exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (s onDB) query(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return unclassified(rows, each)
}

func unclassified(r rows, each func(scan func(...any) error) error) error {
	for r.Next() {
		if err := each(r.Scan); err != nil {
			return err
		}
	}
	return r.Err()
}

// poolWork is a branch on a connection of the user's pool. PREPARE TRANSACTION
// leaves the connection without a transaction, and a ROLLBACK would be one too many.
type poolWork struct {
	pgxTx
	conn *pgxpool.Conn
	lent *lentTx
	slot func() // frees it
}

func beginOnPool(ctx context.Context, pool *pgxpool.Pool, free func()) (pgx.Tx, workplace, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		conn.Release()
		return nil, nil, err
	}
	s := &poolWork{pgxTx{pgxSQL{tx}}, conn, &lentTx{Tx: tx}, free}
	return s.lent, s, nil
}

// free takes the branch from the user and gives the connection back to the pool, which
// closes it if it has a transaction still.
func (s *poolWork) free() {
	s.lent.over.Store(true)
	s.conn.Release()
	s.slot()
}

func (s *poolWork) prepare(ctx context.Context, gid string) error {
	defer s.free()
	// A transaction that has failed is rolled back by this, without an error.
	const done = "PREPARE TRANSACTION"
	tag, err := s.conn.Exec(ctx, `prepare transaction '`+gid+`'`)
	if err == nil && tag.String() != done {
		err = fmt.Errorf("%w: the server answered %q", pgx.ErrTxCommitRollback, tag.String())
	}
	return err
}

func (s *poolWork) Commit(ctx context.Context) error {
	defer s.free()
	return s.pgxTx.Commit(ctx)
}

func (s *poolWork) Rollback(ctx context.Context) error {
	defer s.free()
	return s.pgxTx.Rollback(ctx)
}

// stdWork is a branch on a connection of database/sql.
type stdWork struct{ stdTx }

func beginOnDB(ctx context.Context, db *sql.DB, free func()) (*sql.Tx, workplace, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	tx, err := db.BeginTx(life, nil)
	if !stop() && err == nil {
		err = context.Cause(ctx) // the transaction is rolled back by the end of life
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return tx, stdWork{stdTx{stdSQL: stdSQL{tx}, end: func() { end(); free() }}}, nil
}

// prepare begins another transaction in the same request, which is what database/sql
// then rolls back: without it the server would log a warning for each branch.
func (s stdWork) prepare(ctx context.Context, gid string) error {
	defer func() { _ = s.Rollback(ctx) }()
	_, err := s.tx.ExecContext(ctx, `prepare transaction '`+gid+`'; begin`)
	return err
}

// errBranchOwned: only the coordinator ends a branch.
var errBranchOwned = errors.New("the transaction is a branch of a distributed one: its coordinator ends it")

// lentTx is the transaction of a branch for its user. It refuses to end the branch, and
// everything after the end, when others have its connection.
type lentTx struct {
	pgx.Tx
	over atomic.Bool
}

func (t *lentTx) closed() error {
	if t.over.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

func (t *lentTx) Commit(context.Context) error   { return errBranchOwned }
func (t *lentTx) Rollback(context.Context) error { return errBranchOwned }

func (t *lentTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.closed(); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

func (t *lentTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := t.closed(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, query, args...)
}

func (t *lentTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := t.closed(); err != nil {
		return closedRows{}, err
	}
	return t.Tx.Query(ctx, query, args...)
}

func (t *lentTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if t.closed() != nil {
		return closedRows{}
	}
	return t.Tx.QueryRow(ctx, query, args...)
}

func (t *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.closed(); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, source)
}

func (t *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed() != nil {
		return closedBatch{}
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t *lentTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := t.closed(); err != nil {
		return nil, err
	}
	return t.Tx.Prepare(ctx, name, query)
}

// closedRows are those of a transaction that has ended.
type closedRows struct{ pgx.Rows }

func (closedRows) Close()            {}
func (closedRows) Err() error        { return pgx.ErrTxClosed }
func (closedRows) Next() bool        { return false }
func (closedRows) Scan(...any) error { return pgx.ErrTxClosed }

// closedBatch is the result of a batch in a transaction that has ended.
type closedBatch struct{ pgx.BatchResults }

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return closedRows{}, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedRows{} }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }
