package mysql

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// counters are the tables of the counters of a kind of lock: rows, and in swept the highest counter
// of removed rows. unused is the condition that the lock of a row is free, and was not held (in
// session mode: not granted) for a number of microseconds.
type counters struct{ rows, swept, breaks, unused string }

var (
	sessionCounters = counters{"{ns}_holder", "{ns}_holder_swept", "{ns}_break", "since < {now} - interval ? microsecond and is_used_lock(lock_name) is null"}
	tableCounters   = counters{"{ns}_lease", "{ns}_lease_swept", "{ns}_lease_break", "expires < {now} - interval ? microsecond"}
)

// seed compares the counters with the server's clock, and raises or lowers them according to
// Options.Seed. It records a repair first.
func (c counters) seed(ctx context.Context, q querier, o Options) error {
	var last, swept, now int64
	err := one(ctx, q, o.sql(`select coalesce(max(counter), 0), coalesce((select counter from `+c.swept+` where id = 1), 0), {floor} from `+c.rows),
		nil, &last, &swept, &now)
	if err != nil {
		return err
	}
	run := func(query string, args ...any) {
		if err == nil {
			_, err = q.ExecContext(ctx, o.sql(query), args...)
		}
	}
	return leasetable.Counters{Last: max(last, swept), Now: now,
		Raise: func(floor int64) error {
			run(`insert into `+c.swept+` (id, counter) values (1, ?) on duplicate key update counter = greatest(counter, values(counter))`, floor)
			run(`update `+c.rows+` set counter = ? where counter < ?`, floor, floor)
			return err
		},
		Lower: func(owner string, r *driver.Repair) error {
			run(`insert into `+c.breaks+` (name, owner, reason, who, counter, at) values (?, ?, ?, ?, ?, {now})`,
				driver.BaseName, owner, r.Reason, r.By, now)
			for _, table := range []string{c.rows, c.swept} {
				run(`update `+table+` set counter = ? where counter > ?`, now, now+interlock.MaxAhead.Microseconds())
			}
			return err
		},
	}.Seed(o.Seed)
}

// parameters returns a list of n parameters.
func parameters(n int) string { return strings.TrimPrefix(strings.Repeat(",?", n), ",") }

// A row that was not used for sweepAfter is removed, because some names are used only once, such as
// those of readers. The search runs every sweepEvery, and again at once after a transaction that has
// removed sweepSize rows, its maximum.
const (
	sweepAfter = time.Minute
	sweepEvery = time.Minute
	sweepSize  = 500
)

func sweeps() leasetable.Schedule {
	return leasetable.Schedule{Every: sweepEvery, Next: boottime.Now().Add(sweepEvery)}
}

// starter begins transactions.
type starter interface {
	querier
	BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
}

// sweep removes up to sweepSize rows that were not used for after, and returns how many it has found.
// It keeps their highest counter, so that a name that is used again continues above it, whatever the
// clock. Each of its statements has a short bound, because a transaction that creates a row waits for
// this one. A row that was used after it was found stays.
func (c counters) sweep(ctx context.Context, db starter, o Options, after time.Duration) (found int, err error) {
	// Three statements must leave time to renew the session.
	soon := `set statement max_statement_time = ` + fraction(min(time.Second, o.TTL/8)) + ` for `
	names, err := all(ctx, db, o.sql(soon+`select name from `+c.rows+` where `+c.unused+` limit ?`),
		[]any{after.Microseconds(), sweepSize}, func(rows *sql.Rows) (any, error) {
			var name []byte
			err := rows.Scan(&name)
			return name, err
		})
	if err != nil || len(names) == 0 {
		return 0, err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	which := `name in (` + parameters(len(names)) + `)`
	_, err = tx.ExecContext(ctx, o.sql(soon+`insert into `+c.swept+` (id, counter) select 1, coalesce(max(counter), 0) from `+c.rows+` where `+which+`
		on duplicate key update counter = greatest(`+c.swept+`.counter, values(counter))`), names...)
	if err == nil {
		_, err = tx.ExecContext(ctx, o.sql(soon+`delete from `+c.rows+` where `+which+` and `+c.unused+` and counter <= (select counter from `+c.swept+` where id = 1)`),
			append(names, after.Microseconds())...)
	}
	if err == nil {
		err = tx.Commit()
	}
	return len(names), err
}

// sweepRows removes rows when a sweep is due. After a failure the next sweep repeats it.
func (d *Driver) sweepRows() {
	if d.session == nil || !d.sweeps.Due(boottime.Now()) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(d.life, d.patience(), errNoAnswer)
	defer cancel()
	if found, err := d.sweep(ctx, sweepAfter); err == nil && found == sweepSize {
		d.sweeps.Next = boottime.Now()
	}
}

func (d *Driver) sweep(ctx context.Context, after time.Duration) (found int, err error) {
	err = d.statement(ctx, func(s *session) (err error) {
		found, err = sessionCounters.sweep(ctx, s.conn, d.options, after)
		return err
	})
	return found, err
}
