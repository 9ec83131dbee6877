package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// showHolders: a row counts while the session that wrote it has the lock.
const showHolders = `select name, owner, counter, timestampdiff(microsecond, '2020-01-01', since), 0
from {ns}_holder where connection = is_used_lock(lock_name) and `

// rows runs a query that changes nothing over the session.
func (d *Driver) rows(ctx context.Context, op, name, query string, args []any, row func(*sql.Rows) error) error {
	err := d.ask(ctx, op, name, func(ctx context.Context) error {
		return d.statement(ctx, func(s *session) error { return each(ctx, s.conn, d.options.sql(query), args, row) })
	})
	return ofLook(ctx, op, name, err)
}

func (d *Driver) show(ctx context.Context, op, query string, args ...any) ([]driver.LockState, error) {
	var locks collected[driver.LockState]
	err := d.rows(ctx, op, "", query, args, func(rows *sql.Rows) error {
		state, err := stateOf(rows)
		locks.add(state)
		return err
	})
	return locks.take(), err
}

// Lock shows one name; see driver.Inspector. The server knows of waiters only
// that they come again and again. A session that took the lock by hand is shown as a
// foreign holder, "connection" and its number; Locks does not show it, because the lock
// does not have its name.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state, err := lockOf(ctx, d.show, showHolders, name)
	if err != nil || state.Holder != nil {
		return state, err
	}
	id, err := d.foreign(ctx, name)
	if err != nil || id == 0 {
		return state, err
	}
	// What is granted just now has the lock before its row is there.
	select {
	case <-ctx.Done():
		return state, ofLook(ctx, "inspect", name, context.Cause(ctx))
	case <-time.After(50 * time.Millisecond):
	}
	if again, err := d.foreign(ctx, name); err != nil || again != id {
		return state, err
	}
	state.Holder = &driver.Contender{Owner: foreignOwner(id), Foreign: true}
	return state, nil
}

func foreignOwner(id int64) string { return "connection " + strconv.FormatInt(id, 10) }

// takenByHand is the condition on a connection u.id that has a lock without a row.
const takenByHand = `u.id is not null and not exists (select * from {ns}_holder where name = ? and connection = u.id)`

// foreign is the connection that has the lock and has not taken it by a driver; 0 if none.
func (d *Driver) foreign(ctx context.Context, name string) (int64, error) {
	var found collected[int64]
	err := d.ask(ctx, "inspect", name, func(ctx context.Context) error {
		return d.statement(ctx, func(s *session) error {
			var id int64
			err := one(ctx, s.conn, d.options.sql(`select u.id from (select is_used_lock(?) as id) u where `+takenByHand),
				[]any{s.lockName(d.options, name), []byte(name)}, &id)
			found.add(id)
			return err
		})
	})
	ids := found.take()
	if err != nil || len(ids) == 0 {
		return 0, ofLook(ctx, "inspect", name, err)
	}
	return ids[len(ids)-1], nil
}

// Locks lists names; see driver.Inspector.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	return locksOf(ctx, d.show, showHolders, prefix, limit)
}

// show runs a query about locks, for op.
type show func(ctx context.Context, op, query string, args ...any) ([]driver.LockState, error)

// lockOf shows one name by a query that lacks its condition.
func lockOf(ctx context.Context, show show, query, name string) (driver.LockState, error) {
	state := driver.LockState{Name: name}
	if err := named("inspect", name, "-"); err != nil {
		return state, err
	}
	found, err := show(ctx, "inspect", query+"name = ?", []byte(name))
	if err == nil && len(found) > 0 {
		state = found[0]
	}
	return state, err
}

// locksOf lists names by a query that lacks its condition.
func locksOf(ctx context.Context, show show, query, prefix string, limit int) (_ []driver.LockState, more bool, err error) {
	limit = max(limit, 0)
	where, args := within(prefix)
	locks, err := show(ctx, "list", query+where+" order by name limit ?", append(args, limit+1)...)
	if err != nil || len(locks) <= limit {
		return locks, false, err
	}
	return locks[:limit], true, nil
}

// Watch tells when holders change; see driver.Watcher. It looks about four times
// a second at the rows of all names that were ever used, which costs one
// statement each time: it is made for people and few watchers.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	where, args := within(prefix)
	query := `select name, concat(counter, ' ', coalesce(connection = is_used_lock(lock_name), 0)) from {ns}_holder where ` + where
	return watch(ctx, d.life, prefix, func() (map[string]string, error) { return states(ctx, d.rows, prefix, query, args) }, changed)
}

// states reads names, and of each what tells when its holder changes.
func states(ctx context.Context, rows func(ctx context.Context, op, name, query string, args []any, row func(*sql.Rows) error) error,
	prefix, query string, args []any) (map[string]string, error) {
	var all collected[[2]string]
	err := rows(ctx, "watch", prefix, query, args, func(rows *sql.Rows) error {
		var name, state []byte
		err := rows.Scan(&name, &state)
		all.add([2]string{string(name), string(state)})
		return err
	})
	found := map[string]string{}
	for _, s := range all.take() {
		found[s[0]] = s[1]
	}
	return found, err
}
