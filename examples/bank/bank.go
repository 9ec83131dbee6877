package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/history"
)

// errFunds is a refusal by the program; it is unrelated to locks.
var errFunds = &interlock.Error{Op: "withdraw", Kind: interlock.Definite,
	Err: errors.New("the account does not hold that much")}

// writeTimeout bounds a write whose context does not end with its claim.
const writeTimeout = 10 * time.Second

// bank reads a balance, decides, and writes the new balance. That is correct only if
// no other process writes in between.
type bank struct {
	locks  *lock.Fenced
	db     *pgxpool.Pool
	marks  fence.Table // in the same database as the accounts
	broken bool        // leave the guard out
	told   *witness
}

// withdraw shows the whole pattern: acquire the lock, enter the guard, read, write.
func (b *bank) withdraw(ctx context.Context, account string, amount int64) error {
	name := lockName(account)
	return b.locks.Do(ctx, name, func(ctx context.Context, c interlock.Claim) error { // acquire
		call := b.told.invoke(history.OpWrite, c)
		err := fence.Tx(ctx, postgres.Pool(b.db), b.marks, c, name, // enter
			func(ctx context.Context, tx pgx.Tx) error {
				balance, err := readBalance(ctx, tx, account) // read
				if err != nil {
					return err
				}
				b.told.reached(stage{Stage: "read", Token: c.Token(), Balance: &balance})
				if balance < amount {
					return errFunds
				}
				call.balance = balance - amount
				return writeBalance(ctx, tx, account, balance-amount) // write
			})
		return call.end(err)
	})
}

// withdrawInSteps demonstrates a late write. It reads in one transaction and writes in another. It
// does not check its claim before the write, as if the claim had ended right after a check. No
// check can close that gap, only the guard can. Each transaction enters the guard first, except
// with broken, and that is the only difference.
func (b *bank) withdrawInSteps(ctx context.Context, account string, amount int64) error {
	return b.locks.Do(ctx, lockName(account), func(ctx context.Context, c interlock.Claim) error {
		var balance int64
		err := b.step(ctx, c, history.OpRead, func(ctx context.Context, tx pgx.Tx) (_ int64, err error) {
			balance, err = readBalance(ctx, tx, account)
			return balance, err
		})
		if err != nil {
			return err
		}
		b.told.reached(stage{Stage: "read", Token: c.Token(), Balance: &balance})
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
		defer cancel()
		return b.step(late, c, history.OpWrite, func(ctx context.Context, tx pgx.Tx) (int64, error) {
			if balance < amount {
				return 0, errFunds
			}
			return balance - amount, writeBalance(ctx, tx, account, balance-amount)
		})
	})
}

// step runs one transaction that enters the guard first. fn returns the balance that it
// read or wrote. A program should use fence.Tx instead, which also checks the claim
// and bounds a transaction that stalls. Both are omitted here, so that a late write
// reaches the guard.
func (b *bank) step(ctx context.Context, c interlock.Claim, op string,
	fn func(ctx context.Context, tx pgx.Tx) (int64, error)) error {
	call := b.told.invoke(op, c)
	return call.end(pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) (err error) {
		if !b.broken {
			if err := b.marks.Enter(ctx, postgres.Tx(tx), c.Name(), c.Token(), c.Owner()); err != nil {
				return err
			}
		}
		call.balance, err = fn(ctx, tx)
		return err
	}))
}

func lockName(account string) string { return "account/" + account }
