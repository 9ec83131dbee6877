package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// showHolders selects the rows of held locks: the session that wrote the row has the lock.
const showHolders = `select name, owner, counter, timestampdiff(microsecond, '2020-01-01', since), 0
from {ns}_holder where connection = is_used_lock(lock_name) and `

func (d *Driver) show(ctx context.Context, op, name string, prefix bool, limit int) ([]driver.LockState, error) {
	locks, err := onSession(ctx, d, op, name, func(ctx context.Context, s *session) ([]driver.LockState, error) {
		return show(ctx, s.conn, d.options.sql(showHolders), name, prefix, limit)
	})
	return locks, ofRead(ctx, op, name, err)
}

// Lock returns the state of one name, without waiters, which the server does not know; see
// driver.Inspector. A session that took the lock by hand is a foreign holder, "connection" and its
// number. Locks does not list it, because the server's lock name does not contain the name.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state, err := leasetable.Show(d.show).One(ctx, fail, name)
	if err != nil || state.Holder != nil {
		return state, err
	}
	id, err := d.foreign(ctx, name)
	if err != nil || id == 0 {
		return state, err
	}
	// A session gets the lock before it writes its row.
	select {
	case <-ctx.Done():
		return state, ofRead(ctx, "inspect", name, context.Cause(ctx))
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

// foreign returns the connection that has the lock without a driver, or 0.
func (d *Driver) foreign(ctx context.Context, name string) (int64, error) {
	id, err := onSession(ctx, d, "inspect", name, func(ctx context.Context, s *session) (id int64, err error) {
		err = one(ctx, s.conn, d.options.sql(`select u.id from (select is_used_lock(?) as id) u where `+takenByHand),
			[]any{s.lockName(d.options, name), []byte(name)}, &id)
		return id, err
	})
	return id, ofRead(ctx, "inspect", name, err)
}

// Locks lists names; see driver.Inspector.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	return leasetable.Show(d.show).List(ctx, prefix, limit)
}

// Watch reports when holders change; see driver.Watcher. It reads the rows of all names about four
// times a second, by one statement: use few watchers.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	w := leasetable.Watch{Driver: fail, Life: d.life, States: func(ctx context.Context, prefix string) (map[string]string, error) {
		found, err := onSession(ctx, d, "watch", prefix, func(ctx context.Context, s *session) (map[string]string, error) {
			return states(ctx, s.conn, d.options.sql(`select name, concat(counter, ' ', coalesce(connection = is_used_lock(lock_name), 0))
				from {ns}_holder where connection <> 0 and `), prefix)
		})
		return found, ofRead(ctx, "watch", prefix, err)
	}}
	return w.Run(ctx, prefix, changed)
}

// show reads states of locks by a query that lacks its condition.
func show(ctx context.Context, q querier, query, name string, prefix bool, limit int) ([]driver.LockState, error) {
	where, args := "name = ?", []any{[]byte(name)}
	if prefix {
		where, args = within(name)
	}
	return all(ctx, q, query+where+" order by name limit ?", append(args, limit), func(rows *sql.Rows) (driver.LockState, error) {
		var name, owner []byte
		var counter, since, left int64
		if err := rows.Scan(&name, &owner, &counter, &since, &left); err != nil {
			return driver.LockState{}, err
		}
		return leasetable.State(string(name), string(owner), counter, serverTime(since), time.Duration(left)*time.Microsecond)
	})
}

// states reads names, each with a text that changes with its holder, by a query that lacks its
// condition.
func states(ctx context.Context, q querier, query, prefix string) (map[string]string, error) {
	where, args := within(prefix)
	found := map[string]string{}
	return found, each(ctx, q, query+where, args, func(rows *sql.Rows) error {
		var name, state []byte
		err := rows.Scan(&name, &state)
		found[string(name)] = string(state)
		return err
	})
}

// within returns a condition for names that start with prefix, which uses the index.
func within(prefix string) (where string, args []any) {
	if prefix == "" {
		return "true", nil
	}
	where, args = "name >= ?", []any{[]byte(prefix)}
	end := []byte(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) > 0 {
		end[len(end)-1]++
		where, args = where+" and name < ?", append(args, end)
	}
	return where, args
}

// breaks reads the records of one name, or of all names if it is empty.
func breaks(ctx context.Context, q querier, table, name string, limit int) ([]driver.BreakRecord, error) {
	query, args := `select name, owner, reason, who, counter, timestampdiff(microsecond, '2020-01-01', at) from `+table, []any(nil)
	if name != "" {
		query, args = query+" where name = ?", []any{[]byte(name)}
	}
	return all(ctx, q, query+" order by id desc limit ?", append(args, max(limit, 0)), func(rows *sql.Rows) (driver.BreakRecord, error) {
		var name, owner, reason, who []byte
		var counter, at int64
		if err := rows.Scan(&name, &owner, &reason, &who, &counter, &at); err != nil {
			return driver.BreakRecord{}, err
		}
		b := driver.Break{Name: string(name), Owner: string(owner), Reason: string(reason), By: string(who)}
		return leasetable.Broken(b, counter, serverTime(at))
	})
}
