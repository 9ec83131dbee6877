package databases

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Committing begins transactions whose Commit calls Instead, with the transaction itself.
type Committing struct {
	driver.BeginnerAt[driver.SQL]
	Instead func(ctx context.Context, tx driver.Tx[driver.SQL]) error
}

// Unanswered commits by db, and loses the reply if lost returns true.
func Unanswered(db driver.BeginnerAt[driver.SQL], lost func() bool) Committing {
	return Committing{db, func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
		err := tx.Commit(ctx)
		if err == nil && lost() {
			err = ErrNoReply
		}
		return err
	}}
}

// ErrNoReply is the error of a COMMIT whose reply was lost.
var ErrNoReply = &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("no reply")}

// Begin begins a transaction.
func (c Committing) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.Begin(ctx)
	return committingTx{tx, c}, err
}

// BeginAt begins a transaction.
func (c Committing) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	return committingTx{tx, c}, err
}

type committingTx struct {
	driver.Tx[driver.SQL]
	c Committing
}

func (t committingTx) Commit(ctx context.Context) error { return t.c.Instead(ctx, t.Tx) }
