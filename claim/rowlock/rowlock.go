// Package rowlock locks rows of the caller's own tables inside the caller's own transaction. A
// lock does not outlive that transaction, does not cover rows that do not exist yet, and has no
// token. The transaction itself is the guard: a database commits nothing of a session that it
// has ended.
//
//	accounts := rowlock.Rows{Table: "account", Key: "id"}
//	err := rowlock.Tx(ctx, postgres.Pool(pool), accounts, []string{from, to}, nil,
//		func(ctx context.Context, tx pgx.Tx, locked []string) error {
//			return transfer(ctx, tx, from, to, amount)
//		})
//
// The package locks rows in the order of their keys, whatever the order of the arguments. So
// two transactions that lock several rows through this package do not deadlock over them.
// [Lock] does the same in a transaction that the caller began.
//
// A row lock is for short work on one database. While a transaction holds it, it should not
// wait for anything else. [Tx] warns about long scopes and ends them after a maximum. Package
// rowlocktest fails a test that makes a remote call inside a scope.
//
// MariaDB (10.6 or later) differs from PostgreSQL in two ways. It bounds waits and idle
// transactions in whole seconds. Under its default isolation it also locks the gap where a key
// was looked for and not found.
package rowlock

import (
	"cmp"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Mode selects the behavior for a row that another transaction has locked.
type Mode int

const (
	// Wait waits until the row is free, at most Rows.Wait.
	Wait Mode = iota
	// NoWait fails with [interlock.ErrHeld].
	NoWait
	// SkipLocked leaves the row out, as workers of a queue do.
	SkipLocked
)

// MaxKeys is the maximum number of rows per call.
const MaxKeys = 1000

// Rows names the rows of a table and how to lock them.
type Rows struct {
	// Table is the table, or schema.table. Key is its primary key, or a column with a unique
	// index. Both are trusted and go into the SQL text: never take them from a request.
	Table, Key string
	// Mode is the behavior for a locked row; zero waits.
	Mode Mode
	// Wait bounds each wait of mode Wait; 0 keeps the session's own bound. More than 24 days
	// count as 24 days. MariaDB rounds it up to whole seconds.
	Wait time.Duration
}

// A Key is the Go type of a row's key.
type Key interface {
	~string | ~int | ~int16 | ~int32 | ~int64
}

// Defaults of [Options].
const (
	DefaultMaxHold   = 5 * time.Second
	defaultWarnShare = 2 // a warning comes after half of it
)

// Options configure a scope; nil and the zero value are valid.
type Options struct {
	// MaxHold bounds the time for which rows stay locked, from the first lock on, including
	// waits for the other rows. At its end the function's context ends with [ErrMaxHold] and
	// nothing is committed. The server enforces it too: it ends waits, and transactions that
	// are idle for that long, so a paused process blocks nobody. 0 means [DefaultMaxHold].
	MaxHold time.Duration
	// WarnAfter is the time after which Hooks.Slow is called; 0 means half of MaxHold.
	WarnAfter time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.RowLock
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	r.MaxHold = cmp.Or(r.MaxHold, DefaultMaxHold)
	r.WarnAfter = cmp.Or(r.WarnAfter, r.MaxHold/defaultWarnShare)
	r.Hooks = r.Hooks.WithDefaults()
	if r.MaxHold < time.Millisecond || r.WarnAfter < 0 || r.WarnAfter > r.MaxHold {
		return r, failure.Bug("open scope", "", "MaxHold must be a millisecond or more, and WarnAfter between 0 and MaxHold")
	}
	return r, nil
}
