package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// Charge is a request to the bank, Receipt its answer.
type (
	Charge struct {
		Card  string `json:"card"`
		Cents int    `json:"cents"`
	}
	Receipt struct {
		Left int `json:"left"` // the balance of the account
	}
)

// bankCalls is the bank's guard: a row for each call that it received.
var bankCalls = barrier.Table{Name: "shop_bank_barrier"}

var errRefused = errors.New("the bank refuses the card")

// newBank returns a service that charges cards. It knows only the headers of a call. The
// account and the answer are committed together, so a repeated call gets the first
// answer, including a refusal.
func newBank(db interlock.BeginnerAt[pgx.Tx]) http.Handler {
	accounts := &barrier.Participant[pgx.Tx, Charge, Receipt]{
		DB: db, Table: bankCalls,
		Do: func(ctx context.Context, tx pgx.Tx, c Charge) (r Receipt, err error) {
			err = tx.QueryRow(ctx, `update shop_bank_account set cents = cents - $2
				where card = $1 and cents >= $2 returning cents`, c.Card, c.Cents).Scan(&r.Left)
			if errors.Is(err, pgx.ErrNoRows) {
				return r, branch.Fail(errRefused)
			}
			return r, err
		},
	}
	return branchhttp.Handler(accounts.Call)
}
