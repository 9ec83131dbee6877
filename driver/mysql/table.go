package mysql

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

type leases = leasetable.Table

// Table is a fenced lock by rows with a lease, on the user's own database/sql pool. It works behind
// poolers in any mode. It is safe for concurrent use, and has two goroutines, and one for each
// statement under way.
type Table struct {
	*leases
	rows       *tableRows
	guarantees interlock.Guarantees
}

var (
	_ driver.Fenced    = (*Table)(nil)
	_ driver.Inspector = (*Table)(nil)
	_ driver.Watcher   = (*Table)(nil)
	_ driver.Breaker   = (*Table)(nil)
)

// OpenTable creates missing tables, and computes the guarantees. The caller closes the pool after the
// Table. With interpolateParams=true in its DSN each statement costs one round trip, otherwise two.
// OpenTable refuses a pool whose sessions have autocommit off. It blocks for up to 10 s, or until ctx ends.
func OpenTable(ctx context.Context, db *sql.DB, o *Options) (*Table, error) {
	options, err := o.withDefaults()
	if err = leasetable.CheckOpening(ctx, fail, err, db != nil, "a pool is required"); err != nil {
		return nil, err
	}
	rows := newTableRows(db, options)
	f, err := rows.open(ctx)
	if err != nil {
		return nil, err
	}
	t := &Table{rows: rows, guarantees: leasetable.Guarantees("mariadb table", false, f.durable, options.TTL, MinTTL, MaxTTL)}
	t.leases = leasetable.New(rows, leasetable.Config{Driver: fail, TTL: options.TTL, Interval: options.interval, Mixed: true, Batch: 200, Sweeps: sweeps()})
	t.Start()
	return t, nil
}

// open creates the tables and checks their counters.
func (t *tableRows) open(ctx context.Context) (facts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	f, err := ask(ctx, t.db)
	if err == nil {
		err = f.refusal()
	}
	if err == nil && !f.autocommit {
		err = errors.New("sessions of the pool do not commit by themselves: remove autocommit=0 from the DSN or from init_connect")
	}
	if err == nil {
		err = t.ready(ctx)
	}
	if err == nil {
		err = tableCounters.seed(ctx, t.db, t.options)
	}
	if err != nil {
		return f, opening(ctx, err)
	}
	return f, nil
}

// opening adds the kind to an error of Open: nothing was changed.
func opening(ctx context.Context, err error) error {
	kind := kindOf(inBegin, err, false)
	if ctx.Err() == nil && !fromDatabase(err) {
		kind = interlock.Definite // a refusal
	}
	return problem("open", "", kind, explained(ctx, err))
}

// Guarantees returns the guarantees, computed by OpenTable.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

// interval returns the time until the next attempt.
func (o Options) interval(refusals int) time.Duration {
	return backoff.Policy{First: min(20*time.Millisecond, o.Poll), Max: o.Poll}.Delay(refusals, rand.Float64())
}
