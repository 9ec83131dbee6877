package tcc

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/txn/branch"
)

// layout names the tables of a [Table].
var layout = sqltable.Layout{Part: "tcc", Default: "interlock_tcc",
	Tables: map[string]string{"items": "", "holds": "_hold"}, Indexes: map[string]string{"ask": "_hold_ask"}}

// ledger has the tables within one transaction. MariaDB evaluates assignments in order, so an assignment
// that depends on a column comes before that column's. Texts are never empty, because one sql_mode
// turns empty texts into NULL.
type ledger struct{ sqltable.Tables }

// open opens the tables in a transaction.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// callOf returns the call of ctx, for a hold.
func callOf(ctx context.Context, op string) (branch.Call, error) {
	c := branch.From(ctx)
	switch {
	case c.Transaction == "" && c.Branch == "":
		return c, failure.Bug(op, "", "the context has no call: see branch.With")
	case c.Step != "":
		return c, failure.Bug(op, c.Transaction, "branch %q has a step %q, but a hold belongs to a whole branch", c.Branch, c.Step)
	}
	if err := driver.CheckName(op, "a transaction", c.Transaction, driver.MaxTransaction); err != nil {
		return c, err
	}
	return c, driver.CheckName(op, "a branch", c.Branch, maxBranch)
}

// maxBranch is the longest name of a branch or resource, in bytes.
const maxBranch = 255
