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

// Table is a fenced lock by rows with a lease, on the user's own database/sql
// pool. It works behind poolers in any mode. It is safe for concurrent use, and
// keeps one goroutine, and one for each statement under way.
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

// OpenTable creates the tables if they are missing, and computes the guarantees.
// The pool stays the caller's, who closes it after the Table. With
// interpolateParams=true in its DSN each statement costs one round trip, and
// without it two. It takes 10 s at most, or until ctx ends.
func OpenTable(ctx context.Context, db *sql.DB, o *Options) (*Table, error) {
	options, err := o.withDefaults()
	if err == nil && db == nil {
		err = errors.New("a pool is required")
	}
	if err != nil {
		return nil, problem("open", "", interlock.Bug, err)
	}
	rows := &tableRows{db: db, options: options, missing: true, calls: &calls{limit: dialTimeout}}
	f, err := rows.open(ctx)
	if err != nil {
		return nil, err
	}
	rows.calls.limit = options.statementTimeout()
	t := &Table{rows: rows, guarantees: leasetable.Guarantees("mariadb table", false, f.durable, options.TTL, MinTTL, MaxTTL)}
	t.leases = leasetable.New(rows, leasetable.Config{Driver: fail, TTL: options.TTL, Interval: options.interval, Batch: 200, Sweeps: sweeps()})
	t.Start()
	return t, nil
}

// open creates the tables and judges their counters.
func (t *tableRows) open(ctx context.Context) (facts, error) {
	found := make(chan facts, 1) // the call may outlast this one
	err := t.calls.do(ctx, "open", "", func(ctx context.Context) error {
		f, err := ask(ctx, t.db)
		if err == nil {
			err = f.refusal()
		}
		if err != nil {
			return opening(ctx, err)
		}
		found <- f
		if err := t.ready(ctx); err != nil {
			return err
		}
		if err := tableCounters.seed(ctx, t.db, t.options); err != nil {
			return opening(ctx, err)
		}
		return nil
	})
	if err != nil {
		return facts{}, err
	}
	return <-found, nil
}

// opening gives an error of Open its kind: nothing was changed.
func opening(ctx context.Context, err error) error {
	kind := kindOf(inBegin, err, false)
	if ctx.Err() == nil && !fromDatabase(err) {
		kind = interlock.Definite // a refusal
	}
	return problem("open", "", kind, explained(ctx, err))
}

// Guarantees says what is promised, as computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

// interval is the time to the next try.
func (o Options) interval(refusals int) time.Duration {
	return backoff.Policy{First: min(20*time.Millisecond, o.Poll), Max: o.Poll}.Delay(refusals, rand.Float64())
}

// Close stops renewing and waits for what is under way. What is held is left to
// expire.
func (t *Table) Close(ctx context.Context) error {
	t.rows.calls.close()
	if err := t.leases.Close(ctx); err != nil {
		return err
	}
	return t.rows.calls.wait(ctx)
}
