package postgres

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// showRows: whether name is a prefix, name, limit.
const showRows = `select name, owner, counter, since, ceil(extract(epoch from expires - clock_timestamp()) * 1000)::bigint
from {ns}_lease where owner is not null and expires > clock_timestamp() and name <> ''
and (name = $2::text or $1::bool and starts_with(name, $2)) order by name limit $3::bigint`

func (t *Table) show(ctx context.Context, op string, prefix bool, name string, limit int) ([]driver.LockState, error) {
	var locks []driver.LockState
	err := t.rows(ctx, op, name, func(rows pgx.Rows) error {
		var state driver.LockState
		var holder driver.Contender
		var counter, left int64
		err := rows.Scan(&state.Name, &holder.Owner, &counter, &holder.Since, &left)
		if err != nil {
			return err
		}
		if holder.Token, err = interlock.NewToken(counter, 0); err != nil {
			return err
		}
		holder.Expires = time.Duration(left) * time.Millisecond
		state.Holder = &holder
		locks = append(locks, state)
		return nil
	}, showRows, prefix, name, limit)
	return locks, err
}

// Lock shows one name; see driver.Inspector. The table does not know who waits.
func (t *Table) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state := driver.LockState{Name: name}
	if err := text("inspect", name, "-"); err != nil {
		return state, err
	}
	found, err := t.show(ctx, "inspect", false, name, 1)
	if err != nil || len(found) == 0 {
		return state, err
	}
	return found[0], nil
}

// Locks lists names; see driver.Inspector.
func (t *Table) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if prefix != "" {
		if err := text("list", prefix, "-"); err != nil {
			return nil, false, err
		}
	}
	limit = max(limit, 0)
	locks, err := t.show(ctx, "list", true, prefix, limit+1)
	if err != nil || len(locks) <= limit {
		return locks, false, err
	}
	return locks[:limit], true, nil
}

// watchEvery is how often a watch of a table looks.
const watchEvery = 250 * time.Millisecond

// Watch tells when holders change; see driver.Watcher. It looks at the table
// four times a second, which works behind every pooler and costs one statement each
// time: it is made for people and few watchers.
func (t *Table) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	tokens, err := t.tokens(ctx, prefix)
	if err != nil {
		return err
	}
	look := time.NewTicker(watchEvery)
	defer look.Stop()
	for changed(""); ; {
		select {
		case <-ctx.Done():
			return unsent("watch", prefix, ctx)
		case <-t.life.Done():
			return closedError("watch", prefix)
		case <-look.C:
		}
		now, err := t.tokens(ctx, prefix)
		if err != nil {
			return err
		}
		for _, name := range differing(tokens, now) {
			changed(name)
		}
		tokens = now
	}
}

// tokens is who holds what, by the token, and when each was last released.
func (t *Table) tokens(ctx context.Context, prefix string) (map[string]string, error) {
	tokens := map[string]string{}
	err := t.rows(ctx, "watch", prefix, func(rows pgx.Rows) error {
		var name, state string
		err := rows.Scan(&name, &state)
		tokens[name] = state
		return err
	}, `select name, counter || ' ' || (owner is not null and expires > clock_timestamp())
		from {ns}_lease where name <> '' and starts_with(name, $1::text)`, prefix)
	if err != nil && ctx.Err() == nil && interlock.Kind(err) == interlock.Uncertain {
		return nil, problem("watch", prefix, interlock.Retryable, err)
	}
	return tokens, err
}

func differing(before, now map[string]string) []string {
	names := map[string]bool{}
	for name, state := range now {
		if before[name] != state {
			names[name] = true
		}
	}
	for name := range before {
		if _, there := now[name]; !there {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// breakRow: name, owner, reason, by.
const breakRow = `with gone as (
	update {ns}_lease set owner = null, expires = clock_timestamp()
	where name = $1::text and owner = $2::text and expires > clock_timestamp() returning counter
), noted as (
	insert into {ns}_lease_break (name, owner, reason, who, counter) select $1, $2, $3::text, $4::text, counter from gone returning counter, at
)
select counter, at from noted where pg_notify('{ns}_free', $1) is not null`

// Break takes a lock away; see driver.Breaker. It is recorded in the same
// statement. The holder learns of it with its next renewal.
func (t *Table) Break(ctx context.Context, b driver.Break) (driver.Broken, bool, error) {
	if err := breakable(b); err != nil {
		return driver.Broken{}, false, err
	}
	record, ok := driver.Broken{Break: b}, false
	err := t.rows(ctx, "break", b.Name, func(rows pgx.Rows) error {
		ok = true
		return scanBroken(rows, &record)
	}, breakRow, b.Name, b.Owner, b.Reason, b.By)
	if err != nil || !ok {
		return driver.Broken{}, false, err
	}
	return record, true, nil
}

// scanBroken reads counter, time and whatever comes after them.
func scanBroken(rows pgx.Rows, record *driver.Broken, more ...any) error {
	var counter int64
	err := rows.Scan(append([]any{&counter, &record.At}, more...)...)
	if err == nil {
		record.Token, err = interlock.NewToken(counter, 0)
	}
	return err
}

// Breaks shows what was recorded, which is kept until somebody deletes it.
func (t *Table) Breaks(ctx context.Context, name string, limit int) ([]driver.Broken, error) {
	if name != "" {
		if err := text("list breaks", name, "-"); err != nil {
			return nil, err
		}
	}
	var all []driver.Broken
	err := t.rows(ctx, "list breaks", name, func(rows pgx.Rows) error {
		var r driver.Broken
		err := scanBroken(rows, &r, &r.Name, &r.Owner, &r.Reason, &r.By)
		all = append(all, r)
		return err
	}, `select counter, at, name, owner, reason, who from {ns}_lease_break where name = $1::text or $1 = '' order by id desc limit $2::bigint`,
		name, max(limit, 0))
	return all, err
}
