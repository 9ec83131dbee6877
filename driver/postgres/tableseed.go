package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// beyond is the highest counter that guards accept by the server's clock.
var beyond = int64(interlock.MaxAhead.Microseconds())

// seed judges the rows' counters by the server's clock, and raises or lowers them
// as Options ask.
func (t *Table) seed(ctx context.Context, c *pgx.Conn, seed driver.Seed) error {
	var last, now int64
	err := c.QueryRow(ctx, t.sql(`select coalesce(max(counter), 0), `+clockFloor+` from {ns}_lease`), pgx.QueryExecModeExec).Scan(&last, &now)
	if err != nil {
		return err
	}
	if err := driver.Plausible(last, clockAt(now)); err != nil {
		return t.repair(ctx, c, seed.Repair, last, now, err)
	}
	floor, err := seed.Floor(clockAt(now))
	if err != nil || seed.After == 0 || floor <= now {
		return err
	}
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, t.sql(`insert into {ns}_lease (name, counter, since, expires) values ('', $1::bigint, clock_timestamp(), clock_timestamp())
			on conflict (name) do update set counter = greatest({ns}_lease.counter, excluded.counter)`), pgx.QueryExecModeExec, floor)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, t.sql(`update {ns}_lease set counter = $1::bigint where counter < $1::bigint`), pgx.QueryExecModeExec, floor)
		return err
	})
}

// repair lowers implausible counters to the clock, if Options ask for that, on
// record.
func (t *Table) repair(ctx context.Context, c *pgx.Conn, r *driver.Repair, last, now int64, implausible error) error {
	if r == nil {
		return implausible
	}
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, t.sql(`update {ns}_lease set counter = $1::bigint where counter > $1::bigint + $2::bigint`), pgx.QueryExecModeExec, now, beyond)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, t.sql(`insert into {ns}_lease_break (name, owner, reason, who, counter)
			values ($1::text, $2::text, $3::text, $4::text, $5::bigint)`),
			pgx.QueryExecModeExec, driver.BaseName, r.Record(last, now), r.Reason, r.By, now)
		return err
	})
}
