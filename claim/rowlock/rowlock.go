// Package rowlock locks rows of the user's own tables inside the user's own
// transaction. It does not outlive that transaction, says nothing about rows
// that do not exist yet, and has no token: the transaction itself is the guard,
// because a database commits nothing of a session that it has ended.
//
//	accounts := rowlock.Rows{Table: "account", Key: "id"}
//	err := rowlock.Tx(ctx, postgres.Pool(pool), accounts, []string{from, to}, nil,
//		func(ctx context.Context, tx pgx.Tx, locked []string) error {
//			return transfer(ctx, tx, from, to, amount)
//		})
//
// Rows are locked in the order of their keys, whatever the order in which they
// are named, so that two transactions that lock several rows through this
// package do not deadlock over them. [Lock] does the same in a transaction that
// the user began.
//
// A row lock is for short work on one database. While it is held nothing should
// wait for anything else: [Tx] warns when a scope lasts long and ends it after a
// maximum, and package rowlocktest fails a test that makes a remote call inside.
//
// PostgreSQL and MariaDB (10.6 or later) differ: MariaDB counts a wait in whole
// seconds, bounds a stopped transaction in whole seconds too, and under its
// default isolation also locks the gap where a key was looked for and not found.
package rowlock

import (
	"cmp"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Mode says what to do about a row that another transaction has locked.
type Mode int

const (
	// Wait waits until it is free, or Rows.Wait has passed.
	Wait Mode = iota
	// NoWait fails with [interlock.ErrHeld].
	NoWait
	// SkipLocked leaves it out, as a queue's worker does.
	SkipLocked
)

// MaxKeys is how many rows one call locks at most.
const MaxKeys = 1000

// Rows says which rows can be locked, and how.
type Rows struct {
	// Table is the table, or schema.table; Key is its primary key, or a column
	// with a unique index. Both are the program's own names: never take them
	// from a request.
	Table, Key string
	// Mode is what to do about a row that is locked; zero waits.
	Mode Mode
	// Wait bounds each wait of mode Wait; 0 leaves the session's own bound in
	// force. MariaDB counts in whole seconds: it is rounded up.
	Wait time.Duration
}

// A Key is a row's key as Go has it.
type Key interface {
	~string | ~int | ~int16 | ~int32 | ~int64
}

// Defaults of [Options].
const (
	DefaultMaxHold   = 5 * time.Second
	defaultWarnShare = 2 // a warning comes after half of it
)

// Options of a scope; nil and the zero value work.
type Options struct {
	// MaxHold is how long the rows may stay locked, from the first lock on: it
	// also bounds the waits for the other rows. The function's context ends then
	// with [ErrMaxHold] and nothing is committed. The server ends a wait, and a
	// transaction that stands still for that long, by itself, so that a stopped
	// process holds nobody up. 0 means [DefaultMaxHold].
	MaxHold time.Duration
	// WarnAfter is when Hooks.Slow is called; 0 means half of MaxHold.
	WarnAfter time.Duration
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.RowLock
}

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.MaxHold = cmp.Or(r.MaxHold, DefaultMaxHold)
	r.WarnAfter = cmp.Or(r.WarnAfter, r.MaxHold/defaultWarnShare)
	r.Hooks = r.Hooks.WithDefaults()
	if r.MaxHold < time.Millisecond || r.WarnAfter < 0 || r.WarnAfter > r.MaxHold {
		return r, failure.Bug("open scope", "", "MaxHold must be a millisecond or more, and WarnAfter between 0 and MaxHold")
	}
	return r, nil
}
