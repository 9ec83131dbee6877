package mysql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
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
	state.Holder = &driver.Contender{Owner: "connection " + strconv.FormatInt(id, 10), Foreign: true}
	return state, nil
}

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

// Break releases a lock by force; see driver.Breaker. No session can release the lock of another
// one. So Break records the release, and the server then ends the holder's session, with every
// lock of that process. This requires the same database user, or the privilege CONNECTION ADMIN.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	if err := fail.CheckBreak(b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	found, err := answerOf(ctx, d, "break", b.Name, func(ctx context.Context) (recordedBreak, error) { return d.record(ctx, b) })
	if err != nil || found.id == 0 {
		return driver.BreakRecord{}, false, err
	}
	if err := d.kill(ctx, b.Name, found.id); err != nil {
		return driver.BreakRecord{}, false, err
	}
	return found.BreakRecord, true, nil
}

// recordedBreak is a record, and the holder's connection, or 0.
type recordedBreak struct {
	driver.BreakRecord
	id int64
}

// insertBreak records a forced release if owner holds name, with the holder's connection, in one
// statement: a later statement might see the connection of the next holder.
const insertBreak = `insert into {ns}_break (name, owner, reason, who, counter, at, request, connection)
select name, owner, ?, ?, counter, {now}, ?, connection from {ns}_holder
where name = ? and owner = ? and connection = is_used_lock(lock_name)
returning counter, timestampdiff(microsecond, '2020-01-01', at), connection`

// insertForeignBreak is insertBreak for a connection that took the lock by hand.
const insertForeignBreak = `insert into {ns}_break (name, owner, reason, who, counter, at, request, connection)
select ?, ?, ?, ?, 0, {now}, ?, u.id from (select is_used_lock(?) as id) u
where concat('connection ', u.id) = ? and ` + takenByHand + `
returning counter, timestampdiff(microsecond, '2020-01-01', at), connection`

// record records b, if its owner has the lock. If another operator ends this session meanwhile,
// record reads the outcome.
func (d *Driver) record(ctx context.Context, b driver.Break) (recordedBreak, error) {
	request := rand.Text()
	var counter, at, id, used int64
	err := d.statement(ctx, func(s *session) (err error) {
		used = s.id
		err = one(ctx, s.conn, d.options.sql(insertBreak), []any{[]byte(b.Reason), []byte(b.By), request,
			[]byte(b.Name), []byte(b.Owner)}, &counter, &at, &id)
		if err == nil && id == 0 {
			err = one(ctx, s.conn, d.options.sql(insertForeignBreak), []any{[]byte(b.Name), []byte(b.Owner), []byte(b.Reason),
				[]byte(b.By), request, s.lockName(d.options, b.Name), []byte(b.Owner), []byte(b.Name)}, &counter, &at, &id)
		}
		return err
	})
	if err != nil && d.session == nil && ctx.Err() == nil {
		counter, at, id, err = d.recall(ctx, request, used, b, err)
	}
	if err != nil || id == 0 {
		return recordedBreak{}, err
	}
	record, err := leasetable.Broken(b, counter, serverTime(at))
	return recordedBreak{record, id}, err
}

// recall looks for a record whose answer was lost with session used.
func (d *Driver) recall(ctx context.Context, request string, used int64, b driver.Break, lost error) (counter, at, id int64, err error) {
	connections := 0
	err = d.statement(ctx, func(s *session) error {
		err := one(ctx, s.conn, `select count(*) from information_schema.processlist where id = ?`, []any{used}, &connections)
		if err != nil {
			return err
		}
		return one(ctx, s.conn, d.options.sql(`select counter, timestampdiff(microsecond, '2020-01-01', at), connection
			from {ns}_break where name = ? and request = ?`), []any{[]byte(b.Name), request}, &counter, &at, &id)
	})
	switch {
	case err != nil || id == 0 && connections != 0:
		return 0, 0, 0, lost
	case id == 0:
		return 0, 0, 0, problem("break", b.Name, interlock.Retryable, lost)
	}
	return counter, at, id, nil
}

// kill ends a session of the server, and returns when that session no longer has the lock. If it is
// this driver's session, kill closes it.
func (d *Driver) kill(ctx context.Context, name string, id int64) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for killed := false; ; killed = true {
		gone, err := answerOf(ctx, d, "break", name, func(ctx context.Context) (gone bool, err error) {
			if d.session != nil && d.session.id == id {
				d.endSession(errBroken)
			}
			err = d.statement(ctx, func(s *session) error {
				var user int64
				err := one(ctx, s.conn, `select coalesce(is_used_lock(?), 0)`, []any{s.lockName(d.options, name)}, &user)
				if err == nil && user == id && !killed {
					err = kill(ctx, s.conn, id)
				}
				gone = user != id
				return err
			})
			return gone, err
		})
		if err != nil {
			return leasetable.UncertainBreak(fail, name, err)
		}
		if gone {
			d.freed.Wake(name)
			return nil
		}
		select {
		case <-ctx.Done():
			return fail.Unanswered(ctx, "break", name)
		case <-look.C:
		}
	}
}

var errBroken = errors.New("a lock of this process was taken away by force")

// Breaks returns the recorded forced releases. They are kept until an operator deletes them.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	found, err := onSession(ctx, d, "list breaks", name, func(ctx context.Context, s *session) ([]driver.BreakRecord, error) {
		return breaks(ctx, s.conn, d.options.sql("{ns}_break"), name, limit)
	})
	return found, ofRead(ctx, "list breaks", name, err)
}
