package tcc

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/txn/branch"
)

// layout is the tables of a [Table].
var layout = sqltable.Layout{Part: "tcc", Default: "interlock_tcc",
	Tables: map[string]string{"items": "", "holds": "_hold"}, Indexes: map[string]string{"ask": "_hold_ask"}}

// ledger is the tables in one transaction. MariaDB does assignments one after the other,
// so that what depends on a column stands before it. Texts are never empty, because
// there is a sql_mode that makes those NULL.
type ledger struct{ sqltable.Tables }

// open opens the tables in a transaction.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// called is the call that ctx is made for, as one of a hold.
func called(ctx context.Context, op string) (branch.Call, error) {
	c := branch.From(ctx)
	switch {
	case c.Transaction == "" && c.Branch == "":
		return c, failure.Bug(op, "", "the context is not that of a call: see branch.With")
	case c.Step != "":
		return c, failure.Bug(op, c.Transaction, "branch %q has a step %q, and a hold is that of a whole branch", c.Branch, c.Step)
	}
	if err := driver.CheckName(op, "a transaction", c.Transaction, driver.MaxTransaction); err != nil {
		return c, err
	}
	return c, driver.CheckName(op, "a branch", c.Branch, maxBranch)
}

// maxBranch is the most bytes of a branch's or a resource's name.
const maxBranch = 255
