package mysql

import (
	"context"
	"database/sql"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// rows runs a query that changes nothing, and waits for ctx as long as it needs.
func (t *Table) rows(ctx context.Context, op, name string, query string, args []any, row func(*sql.Rows) error) error {
	err := t.run(ctx, op, name, "", func(bounded context.Context) error {
		bounded, cancel := context.WithCancel(bounded)
		defer context.AfterFunc(ctx, cancel)()
		return each(bounded, t.db, t.options.sql(query), args, func(rows *sql.Rows) error {
			if ctx.Err() != nil {
				return ctx.Err() // nobody waits for the rows
			}
			return row(rows)
		})
	})
	return ofLook(ctx, op, name, err)
}

const showRows = `select name, owner, counter, timestampdiff(microsecond, '2020-01-01', since), timestampdiff(microsecond, {now}, expires)
from {ns}_lease where owner <> x'' and expires > {now} and `

// stateOf reads a row of showRows.
func stateOf(rows *sql.Rows) (driver.LockState, error) {
	var name, owner []byte
	var counter, since, left int64
	if err := rows.Scan(&name, &owner, &counter, &since, &left); err != nil {
		return driver.LockState{}, err
	}
	token, err := interlock.NewToken(counter, 0)
	return driver.LockState{Name: string(name), Holder: &driver.Contender{
		Owner: string(owner), Token: token, Since: serverTime(since), Expires: time.Duration(left) * time.Microsecond,
	}}, err
}

// Lock shows one name; see driver.Inspector. The table does not know who waits.
func (t *Table) Lock(ctx context.Context, name string) (driver.LockState, error) {
	return lockOf(ctx, t.show, showRows, name)
}

// Locks lists names; see driver.Inspector.
func (t *Table) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	return locksOf(ctx, t.show, showRows, prefix, limit)
}

func (t *Table) show(ctx context.Context, op, query string, args ...any) ([]driver.LockState, error) {
	var locks collected[driver.LockState]
	err := t.rows(ctx, op, "", query, args, func(rows *sql.Rows) error {
		state, err := stateOf(rows)
		locks.add(state)
		return err
	})
	return locks.take(), err
}

// within is a condition for names that start with prefix, which uses the index.
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

// watchEvery is about how often a watch looks.
const watchEvery = 250 * time.Millisecond

// watch tells when what states shows changes, until ctx or life ends.
func watch(ctx, life context.Context, prefix string, states func() (map[string]string, error), changed func(name string)) error {
	before, err := states()
	if err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for changed(""); ; {
		timer.Reset(watchEvery*3/4 + rand.N(watchEvery/2))
		select {
		case <-ctx.Done():
			return unsent(ctx, "watch", prefix)
		case <-life.Done():
			return closedError("watch", prefix)
		case <-timer.C:
		}
		now, err := states()
		if err != nil {
			return err
		}
		for _, name := range differing(before, now) {
			changed(name)
		}
		before = now
	}
}

func differing(before, now map[string]string) []string {
	names := map[string]bool{}
	for name, state := range now {
		names[name] = before[name] != state
	}
	for name := range before {
		if _, there := now[name]; !there {
			names[name] = true
		}
	}
	maps.DeleteFunc(names, func(_ string, changed bool) bool { return !changed })
	return slices.Sorted(maps.Keys(names))
}

// Watch tells when holders change; see driver.Watcher. It looks at the table
// about four times a second, which costs one statement each time: it is made for
// people and few watchers.
func (t *Table) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	where, args := within(prefix)
	query := `select name, concat(counter, ' ', owner <> x'' and expires > {now}) from {ns}_lease where ` + where
	return watch(ctx, t.life, prefix, func() (map[string]string, error) { return states(ctx, t.rows, prefix, query, args) }, changed)
}

// Break takes a lock away; see driver.Breaker. It is recorded in the same
// transaction. The holder learns of it with its next renewal.
func (t *Table) Break(ctx context.Context, b driver.Break) (driver.Broken, bool, error) {
	if err := breakable(b); err != nil {
		return driver.Broken{}, false, err
	}
	var done collected[driver.Broken]
	err := t.run(ctx, "break", b.Name, "", func(ctx context.Context) error {
		record, ok, err := t.breakRow(ctx, b)
		if ok && err == nil {
			done.add(record)
		}
		return err
	})
	if err != nil {
		return driver.Broken{}, false, err
	}
	t.freed.ring(b.Name)
	for _, record := range done.take() {
		return record, true, nil
	}
	return driver.Broken{}, false, nil
}

func (t *Table) breakRow(ctx context.Context, b driver.Break) (record driver.Broken, ok bool, err error) {
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return record, false, err
	}
	defer tx.Rollback()
	var counter int64
	ok, err = maybe(ctx, tx, t.options.sql(`select counter from {ns}_lease where name = ? and owner = ? and expires > {now} for update`),
		[]any{[]byte(b.Name), []byte(b.Owner)}, &counter)
	if err != nil || !ok {
		return record, false, err
	}
	if record, err = recordBreak(ctx, tx, t.options.sql("{ns}_lease_break"), b, counter); err != nil {
		return record, false, err
	}
	if _, err := tx.ExecContext(ctx, t.options.sql(freeRow), []byte(b.Name), []byte(b.Owner)); err != nil {
		return record, false, err
	}
	if err := tx.Commit(); err != nil {
		return record, false, failed(ctx, inCommit, err)
	}
	return record, true, nil
}

// recordBreak writes the record of a forced release.
func recordBreak(ctx context.Context, q querier, table string, b driver.Break, counter int64) (driver.Broken, error) {
	record := driver.Broken{Break: b}
	var at int64
	err := one(ctx, q, `insert into `+table+` (name, owner, reason, who, counter, at) values (?, ?, ?, ?, ?, utc_timestamp(6))
		returning timestampdiff(microsecond, '2020-01-01', at)`,
		[]any{[]byte(b.Name), []byte(b.Owner), []byte(b.Reason), []byte(b.By), counter}, &at)
	if err == nil {
		record.Token, err = interlock.NewToken(counter, 0)
	}
	record.At = serverTime(at)
	return record, err
}

// brokenQuery shows the records of one name, or of all.
func brokenQuery(table, name string, limit int) (query string, args []any) {
	query = `select name, owner, reason, who, counter, timestampdiff(microsecond, '2020-01-01', at) from ` + table
	if name != "" {
		query, args = query+" where name = ?", []any{[]byte(name)}
	}
	return query + " order by id desc limit ?", append(args, max(limit, 0))
}

func brokenOf(rows *sql.Rows) (record driver.Broken, err error) {
	var name, owner, reason, who []byte
	var counter, at int64
	if err = rows.Scan(&name, &owner, &reason, &who, &counter, &at); err != nil {
		return record, err
	}
	record.Break = driver.Break{Name: string(name), Owner: string(owner), Reason: string(reason), By: string(who)}
	record.Token, err = brokenToken(counter)
	record.At = serverTime(at)
	return record, err
}

// Breaks shows what was recorded, which is kept until somebody deletes it.
func (t *Table) Breaks(ctx context.Context, name string, limit int) ([]driver.Broken, error) {
	query, args := brokenQuery("{ns}_lease_break", name, limit)
	var all collected[driver.Broken]
	err := t.rows(ctx, "list breaks", name, query, args, func(rows *sql.Rows) error {
		record, err := brokenOf(rows)
		all.add(record)
		return err
	})
	return all.take(), err
}
