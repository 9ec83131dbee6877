package mysql

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// A row that nobody has used for sweepAfter is removed: a lock may have a name that is used
// once, as that of a reader has. Rows are looked for every sweepEvery, and again at once
// after a transaction has removed sweepSize, which is the most it may.
const (
	sweepAfter = time.Minute
	sweepEvery = time.Minute
	sweepSize  = 500
)

// schedule is when rows are looked for the next time.
type schedule struct{ next boottime.Instant }

// due reports whether it is time, and has the next sweep come later.
func (s *schedule) due(now boottime.Instant) bool {
	if now < s.next {
		return false
	}
	s.next = now.Add(sweepEvery)
	return true
}

// swept has the next sweep come at once if there may be more to remove.
func (s *schedule) swept(removed int, now boottime.Instant) {
	if removed == sweepSize {
		s.next = now
	}
}

// starter begins transactions.
type starter interface {
	querier
	BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
}

// sweep removes rows that nobody has used for so long, sweepSize at most, and returns how
// many it has found. It keeps the highest counter of them, so that a name that comes again
// goes on above it whatever the clock says. A transaction that makes a row has to wait for
// this one, so that the server ends each of its statements soon. A row that was used after
// it was found stays.
func (c counters) sweep(ctx context.Context, db starter, o Options, after time.Duration) (found int, err error) {
	// A session has to be renewed meanwhile, and three statements are sent.
	soon := `set statement max_statement_time = ` + fraction(min(time.Second, o.TTL/8)) + ` for `
	var names []any
	err = each(ctx, db, o.sql(soon+`select name from `+c.rows+` where `+c.unused+` limit ?`),
		[]any{after.Microseconds(), sweepSize}, func(rows *sql.Rows) error {
			var name []byte
			err := rows.Scan(&name)
			names = append(names, name)
			return err
		})
	if err != nil || len(names) == 0 {
		return 0, err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	which := `name in (` + strings.TrimSuffix(strings.Repeat("?,", len(names)), ",") + `)`
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

// sweep removes rows when it is time. If it fails there is a next time.
func (k *keeper) sweep(now boottime.Instant) {
	if !k.sweeps.due(now) {
		return
	}
	t := k.table
	ctx, cancel := context.WithTimeout(t.life, t.options.TTL/4) // what is held must be renewed
	defer cancel()
	found := make(chan int, 1) // the statement may outlast this call
	err := t.run(ctx, "sweep", "", "", func(ctx context.Context) error {
		n, err := t.sweep(ctx, sweepAfter)
		found <- n
		return err
	})
	if err == nil {
		k.sweeps.swept(<-found, now)
	}
}

func (t *Table) sweep(ctx context.Context, after time.Duration) (found int, err error) {
	return tableCounters.sweep(ctx, t.db, t.options, after)
}

// sweepRows removes rows when it is time. If it fails there is a next time.
func (d *Driver) sweepRows() {
	if d.session == nil || !d.sweeps.due(boottime.Now()) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(d.life, d.patience(), errNoWord)
	defer cancel()
	if found, err := d.sweep(ctx, sweepAfter); err == nil {
		d.sweeps.swept(found, boottime.Now())
	}
}

func (d *Driver) sweep(ctx context.Context, after time.Duration) (found int, err error) {
	err = d.statement(ctx, func(s *session) (err error) {
		found, err = sessionCounters.sweep(ctx, s.conn, d.options, after)
		return err
	})
	return found, err
}
