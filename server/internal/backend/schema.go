package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/reply"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/guard/stock"
	versions "github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/choreography"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// A Part is a component with tables in a database, by its name in "interlock schema --only".
type Part struct {
	Name string
	driver.Creator
}

// Parts are the components with tables, except for [LockPart]. Tables with the user's columns are
// omitted: their packages create them.
var Parts = []Part{
	{"fence", fence.Table{}}, {"version", versions.Table{}}, {"stock", stock.Table{}}, {"once", once.Inbox{Consumer: "schema"}},
	{"idempotency", idempotency.Table{}}, {"proxy", proxy.Calls{}}, {"sequence", sequence.Table{}}, {"outbox", outbox.Table{}}, {"queue", queue.Table{}}, {"reply", reply.Table{}}, {"limit", limit.Table{}},
	{"journal", journal.NewTable[struct{}](nil, "")}, {"barrier", barrier.Table{}}, {"tcc", tcc.Table{}},
	{"choreography", choreography.Tracker{}},
	{"semanticlock", countermeasure.SemanticLock{}}, {"byvalue", countermeasure.ByValue{}},
}

// LockPart returns the part of the lock drivers; an empty namespace means the default.
func LockPart(namespace string) Part { return Part{"locks", lockTables(namespace)} }

type lockTables string // the namespace

// Create implements [driver.Creator].
func (t lockTables) Create(ctx context.Context, db driver.SQL) error {
	statements := postgres.Schema(string(t))
	if db.Dialect() == driver.MariaDB {
		statements = mysql.Schema(string(t))
	}
	for _, s := range statements {
		if _, err := db.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
