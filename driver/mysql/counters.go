package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// counters are the tables of the counters of a kind of lock: rows, and floor, a durable row that no
// counter of a row that is missing is above. last is the highest counter of rows.
type counters struct{ rows, floor, breaks, last string }

var (
	sessionCounters = counters{"{ns}_holder", "{ns}_holder_reserved", "{ns}_break", `(select auto_increment - 1 from information_schema.tables
		where table_schema = database() and table_name = '{ns}_holder')`}
	tableCounters = counters{"{ns}_lease", "{ns}_lease_swept", "{ns}_lease_break", "(select max(counter) from {ns}_lease)"}
)

// seed compares the counters with the server's clock, and raises or lowers them according to
// Options.Seed. It records a repair first.
func (c counters) seed(ctx context.Context, q querier, o Options) error {
	var last, now int64
	err := one(ctx, q, o.sql(`select greatest(coalesce(`+c.last+`, 0), coalesce((select counter from `+c.floor+` where id = 1), 0)), {floor}`),
		nil, &last, &now)
	if err != nil {
		return err
	}
	run := func(query string, args ...any) {
		if err == nil {
			_, err = q.ExecContext(ctx, o.sql(query), args...)
		}
	}
	return leasetable.Counters{Last: last, Now: now,
		Raise: func(floor int64) error {
			run(`insert into `+c.floor+` (id, counter) values (1, ?) on duplicate key update counter = greatest(counter, values(counter))`, floor)
			run(`update `+c.rows+` set counter = ? where counter < ?`, floor, floor)
			return err
		},
		Lower: func(owner string, r *driver.Repair) error {
			run(`insert into `+c.breaks+` (name, owner, reason, who, counter, at) values (?, ?, ?, ?, ?, {now})`,
				driver.BaseName, owner, r.Reason, r.By, now)
			for _, table := range []string{c.rows, c.floor} {
				run(`update `+table+` set counter = ? where counter > ?`, now, now+interlock.MaxAhead.Microseconds())
			}
			if c == sessionCounters {
				run(fmt.Sprintf(`alter table {ns}_holder auto_increment = %d`, now))
			}
			return err
		},
	}.Seed(o.Seed)
}

// parameters returns a list of n parameters.
func parameters(n int) string { return strings.TrimPrefix(strings.Repeat(",?", n), ",") }

// A lease that was not used for sweepAfter is removed, because some names are used only once, such as
// those of readers. The search runs every sweepEvery, and again at once after a transaction that has
// removed sweepSize rows, its maximum. A session removes the rows of locks that are free every
// sweepEvery, too, and after as many grants as there are locks, sweepGrants at least.
const (
	sweepAfter  = time.Minute
	sweepEvery  = time.Minute
	sweepSize   = 500
	sweepGrants = 1000
)

func sweeps() leasetable.Schedule {
	return leasetable.Schedule{Every: sweepEvery, Next: boottime.Now().Add(sweepEvery)}
}

// soon bounds each statement of a sweep: three must leave time to renew the session.
func (o Options) soon() string {
	return `set statement max_statement_time = ` + fraction(min(time.Second, o.TTL/8)) + ` for `
}

const expiredLease = `expires < {now} - interval ? microsecond`

// sweepLeases removes up to sweepSize rows that were not used for after, and returns how many it has
// found. It keeps their highest counter, so that a name that is used again continues above it, whatever
// the clock. Each of its statements has a short bound, because a transaction that creates a row waits
// for this one. A row that was used after it was found stays.
func sweepLeases(ctx context.Context, conn *sql.Conn, o Options, after time.Duration) (found int, err error) {
	names, err := all(ctx, conn, o.sql(o.soon()+`select name from {ns}_lease where `+expiredLease+` limit ?`),
		[]any{after.Microseconds(), sweepSize}, func(rows *sql.Rows) (any, error) {
			var name []byte
			err := rows.Scan(&name)
			return name, err
		})
	if err != nil || len(names) == 0 {
		return 0, err
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	which := `name in (` + parameters(len(names)) + `)`
	_, err = tx.ExecContext(ctx, o.sql(o.soon()+`insert into {ns}_lease_swept (id, counter) select 1, coalesce(max(counter), 0) from {ns}_lease where `+which+`
		on duplicate key update counter = greatest({ns}_lease_swept.counter, values(counter))`), names...)
	if err == nil {
		_, err = tx.ExecContext(ctx, o.sql(o.soon()+`delete from {ns}_lease where `+which+` and `+expiredLease+`
			and counter <= (select counter from {ns}_lease_swept where id = 1)`), append(names, after.Microseconds())...)
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
	_ = d.sweep(ctx)
}

// sweep removes the rows of free locks. Statements that take locks wait for this one.
func (d *Driver) sweep(ctx context.Context) error {
	return d.statement(ctx, func(s *session) error {
		_, err := s.conn.ExecContext(ctx, d.options.sql(d.options.soon()+
			`delete from {ns}_holder where connection <> 0 and is_used_lock(lock_name) is null`))
		return err
	})
}
