package txntest

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Counted counts the statements and commits of its transactions, but not what is done with
// their Native.
type Counted struct {
	driver.BeginnerAt[driver.SQL]
	Statements, Commits int
}

// BeginAt begins one of them.
func (c *Counted) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	return countedTx{tx, c}, err
}

type countedTx struct {
	driver.Tx[driver.SQL]
	c *Counted
}

func (t countedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	t.c.Statements++
	return t.Tx.Exec(ctx, query, args...)
}

func (t countedTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.c.Statements++
	return t.Tx.Query(ctx, query, args, each)
}

func (t countedTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	t.c.Statements++
	return t.Tx.Bound(ctx, idle, statement)
}

func (t countedTx) Commit(ctx context.Context) error {
	t.c.Commits++
	return t.Tx.Commit(ctx)
}
