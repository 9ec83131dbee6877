package httpapi

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// A witness takes part in every two-phase commit, and changes nothing. A single participant would
// commit without a record, and again after a repeated request.
type witness struct{}

// witnessDefinition has a name that no other participant has.
var witnessDefinition = twopc.Define("_http", driver.Preparer[witness](witness{}))

func (w witness) Begin(context.Context, driver.XID) (witness, driver.Preparing, error) {
	return w, w, nil
}
func (witness) Prepare(context.Context) (driver.Vote, error)      { return driver.VoteReadOnly, nil }
func (witness) CommitOne(context.Context) error                   { return nil }
func (witness) Abandon(context.Context) error                     { return nil }
func (witness) Commit(context.Context, driver.XID) error          { return nil }
func (witness) Rollback(context.Context, driver.XID) error        { return nil }
func (witness) InDoubt(context.Context) ([]driver.InDoubt, error) { return nil, nil }
