package mysql

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// counters are where a kind of lock keeps its counters: in rows, and, for rows that
// were removed, the highest of them. unused is the condition that nobody holds the lock of a
// row, nor has for so many microseconds; in session mode: has been granted it.
type counters struct{ rows, swept, breaks, unused string }

var (
	sessionCounters = counters{"{ns}_holder", "{ns}_holder_swept", "{ns}_break", "since < {now} - interval ? microsecond and is_used_lock(lock_name) is null"}
	tableCounters   = counters{"{ns}_lease", "{ns}_lease_swept", "{ns}_lease_break", "expires < {now} - interval ? microsecond"}
)

// raiseSwept: counter. Rows that are made from now on start above it.
func (c counters) raiseSwept() string {
	return `insert into ` + c.swept + ` (id, counter) values (1, ?) on duplicate key update counter = greatest(counter, values(counter))`
}

// seed judges the counters by the server's clock, and raises or lowers them as
// Options ask.
func (c counters) seed(ctx context.Context, q querier, o Options) error {
	var last, swept, now int64
	err := one(ctx, q, o.sql(`select coalesce(max(counter), 0), coalesce((select counter from `+c.swept+` where id = 1), 0), {floor} from `+c.rows),
		nil, &last, &swept, &now)
	if err != nil {
		return err
	}
	last = max(last, swept)
	if err := driver.Plausible(last, serverTime(now)); err != nil {
		return c.repair(ctx, q, o, last, now, err)
	}
	floor, err := o.Seed.Floor(serverTime(now))
	if err != nil || o.Seed.After == 0 || floor <= now {
		return err
	}
	if _, err := q.ExecContext(ctx, o.sql(c.raiseSwept()), floor); err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, o.sql(`update `+c.rows+` set counter = ? where counter < ?`), floor, floor)
	return err
}

// repair lowers implausible counters to the clock, if Options ask for that. It is
// recorded first.
func (c counters) repair(ctx context.Context, q querier, o Options, last, now int64, implausible error) error {
	r := o.Seed.Repair
	if r == nil {
		return implausible
	}
	_, err := q.ExecContext(ctx, o.sql(`insert into `+c.breaks+` (name, owner, reason, who, counter, at) values (?, ?, ?, ?, ?, {now})`),
		driver.BaseName, r.Record(last, now), r.Reason, r.By, now)
	for _, table := range []string{c.rows, c.swept} {
		if err == nil {
			_, err = q.ExecContext(ctx, o.sql(`update `+table+` set counter = ? where counter > ?`), now, now+interlock.MaxAhead.Microseconds())
		}
	}
	return err
}
