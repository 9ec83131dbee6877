package postgres

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
