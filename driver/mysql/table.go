package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/leasetable"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

type leases = leasetable.Table

// Table is a fenced lock by rows with a lease, on the user's own database/sql pool. It works behind
// poolers in any mode. It is safe for concurrent use, and has two goroutines, and one for each
// statement under way.
type Table struct {
	*leases
	rows *tableRows
}

var (
	_ driver.Fenced    = (*Table)(nil)
	_ driver.Inspector = (*Table)(nil)
	_ driver.Watcher   = (*Table)(nil)
	_ driver.Breaker   = (*Table)(nil)
)

// OpenTable creates missing tables, and computes the guarantees. The caller closes the pool after the
// Table. With interpolateParams=true in its DSN each statement costs one round trip, otherwise two.
// OpenTable refuses a pool whose sessions have autocommit off. It blocks for up to 10 s, or until ctx ends.
func OpenTable(ctx context.Context, db *sql.DB, o *Options) (*Table, error) {
	options, err := o.withDefaults()
	if err = leasetable.CheckOpening(ctx, fail, err, db != nil, "a pool is required"); err != nil {
		return nil, err
	}
	rows := newTableRows(db, options)
	f, err := rows.open(ctx)
	if err != nil {
		return nil, err
	}
	t := &Table{rows: rows, leases: leasetable.New(rows, leasetable.Config{Driver: fail, TTL: options.TTL, Interval: options.interval, Mixed: true, Batch: 200,
		Promises: leasetable.Guarantees("mariadb table", false, f.durable, options.TTL, MinTTL, MaxTTL), Sweeps: sweeps()})}
	t.Start()
	return t, nil
}

// open creates the tables and checks their counters.
func (t *tableRows) open(ctx context.Context) (facts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	f, err := ask(ctx, t.db)
	if err == nil {
		err = f.refusal()
	}
	if err == nil && !f.autocommit {
		err = errAutocommit
	}
	if err == nil {
		err = t.ready(ctx, t.db)
	}
	if err == nil {
		err = tableCounters.seed(ctx, t.db, t.options)
	}
	if err != nil {
		return f, opening(ctx, err)
	}
	return f, nil
}

var errAutocommit = errors.New("sessions of the pool do not commit by themselves: remove autocommit=0 from the DSN or from init_connect")

// opening adds the kind to an error of Open: nothing was changed.
func opening(ctx context.Context, err error) error {
	kind := kindOf(inBegin, err, false)
	if ctx.Err() == nil && !fromDatabase(err) {
		kind = interlock.Definite // a refusal
	}
	return problem("open", "", kind, explained(ctx, err))
}

// interval returns the time until the next attempt.
func (o Options) interval(refusals int) time.Duration {
	return backoff.Policy{First: min(20*time.Millisecond, o.Poll), Max: o.Poll}.Delay(refusals, rand.Float64())
}

// tableRows are the rows of a [Table].
type tableRows struct {
	db      *sql.DB
	options Options

	// Statements of this namespace. lockRows is what precedes and what follows the locks.
	lockRow, freeRow, freeRows string
	lockRows                   [2]string

	mu      sync.Mutex
	missing bool // the tables may not be there
}

func newTableRows(db *sql.DB, o Options) *tableRows {
	t := &tableRows{db: db, options: o, missing: true, lockRow: o.sql(lockRow), freeRow: o.sql(freeRow), freeRows: o.sql(freeRows)}
	t.lockRows[0], t.lockRows[1], _ = strings.Cut(o.sql(lockRows), "{locks}")
	return t
}

// tableSchema creates the tables. A row stays after the release of its lock, because it has the
// counter. The row of {ns}_lease_swept has the highest counter of removed rows.
var tableSchema = []string{
	`create table if not exists {ns}_lease (
		name varbinary(512) not null primary key,
		owner varbinary(512) not null,
		counter bigint not null,
		since datetime(6) not null,
		expires datetime(6) not null) engine = InnoDB`,
	`create table if not exists {ns}_lease_swept (
		id int not null primary key,
		counter bigint not null) engine = InnoDB`,
	`create table if not exists {ns}_lease_break ` + breakColumns,
}

const breakColumns = `(
		id bigint not null auto_increment primary key,
		name varbinary(512) not null,
		owner varbinary(512) not null,
		reason varbinary(512) not null,
		who varbinary(512) not null,
		counter bigint not null,
		at datetime(6) not null,
		request char(26) character set latin1,
		connection bigint,
		key (name, id)) engine = InnoDB`

// lockRow has the parameters name, owner, TTL in µs. Whether an assignment sees the earlier ones
// depends on sql_mode; each is correct in both cases. The clock is read when the statement begins, so
// a statement that waits for the row gets less than a TTL. The statement has a time limit, so that it
// does not take the lock after its caller has stopped waiting.
const lockRow = `set statement max_statement_time = {limit} for
insert into {ns}_lease (name, owner, counter, since, expires)
values (?, ?, ` + firstCounter + `, {now}, {now} + interval ? microsecond)` + lockExisting

// lockRows is lockRow for several names, in their order. It fails if another transaction
// has one of their rows locked. {locks} are names, owners and TTLs; a TTL of 0 releases. The highest counter of swept
// rows is read once: in a list of values it would be read for each.
const lockRows = `set statement max_statement_time = {limit}, innodb_lock_wait_timeout = 0 for
insert into {ns}_lease (name, owner, counter, since, expires)
select w.locked, w.who, ` + firstCounter + `, {now}, {now} + interval w.ttl microsecond
from (select x'' as locked, x'' as who, 0 as ttl where false union all values {locks}) w` + lockExisting

// firstCounter waits for a sweep under way, at any isolation level.
const firstCounter = `greatest({floor}, 1 + coalesce((select counter from {ns}_lease_swept where id = 1 lock in share mode), 0))`

// A row without an owner is free, whatever the clock. A lease that is over when it begins is a release.
const lockExisting = `
on duplicate key update
	counter = if(expires <= {now} or owner = x'', greatest(counter + 1, {floor}), counter),
	since = if(expires <= {now} or owner = x'', values(since), since),
	owner = if(expires <= {now} or owner in (x'', values(owner)), if(values(expires) <= {now}, x'', values(owner)), owner),
	expires = if(expires <= {now} or owner in (x'', values(owner)), values(expires), expires)
returning name, owner, counter, timestampdiff(microsecond, '2020-01-01', since), timestampdiff(microsecond, {now}, expires)`

// freeRow has the parameters name, owner. No owner is an empty text in hexadecimal digits, which no
// sql_mode changes to NULL.
const freeRow = `set statement max_statement_time = {limit} for
update {ns}_lease set owner = x'', expires = {now} where name = ? and owner = ?`

// freeRows is freeRow for several: names, and pairs. It fails if another transaction has one of
// the rows locked. Without the index, the server locks all rows of a small table.
const freeRows = `set statement max_statement_time = {limit}, innodb_lock_wait_timeout = 0 for
update {ns}_lease force index (primary) set owner = x'', expires = {now} where name in ({n}) and (name, owner) in ({pairs})`

// Rows are found by their names, because of the index; an owner has one name.
const (
	keepRows = `set statement {bound} for
update {ns}_lease force index (primary) set expires = {now} + interval ? microsecond
where name in ({n}) and owner in ({n}) and expires > {now}`
	keptRows = `select owner from {ns}_lease where name in ({n}) and owner in ({n}) and expires > {now}`
)

const showRows = `select name, owner, counter, timestampdiff(microsecond, '2020-01-01', since), timestampdiff(microsecond, {now}, expires)
from {ns}_lease where owner <> x'' and expires > {now} and `

// Take sends one statement.
func (t *tableRows) Take(ctx context.Context, asks []*leasetable.Ask) error {
	query, args := t.lock(asks)
	return t.run(ctx, "acquire", "", func(ctx context.Context, conn *sql.Conn) error {
		sent := boottime.Now()
		return lockedRow(asks, each(ctx, conn, query, args, func(rows *sql.Rows) error {
			var name, owner []byte
			var counter, since, left int64
			if err := rows.Scan(&name, &owner, &counter, &since, &left); err != nil {
				return err
			}
			a := leasetable.Find(asks, string(name))
			a.Row = leasetable.Row{Sent: sent, Owner: string(owner), Since: serverTime(since), Left: time.Duration(left) * time.Microsecond}
			a.Row.Until = time.Now().Add(a.Row.Left)
			if a.Row.Owner == a.Owner {
				a.Row.Counter = counter
			}
			return nil
		}))
	})
}

// lock returns the statement that locks the rows.
func (t *tableRows) lock(asks []*leasetable.Ask) (query string, args []any) {
	lease := func(a *leasetable.Ask) int64 {
		if a.Free {
			return 0
		}
		return a.Lease(t.options.TTL).Microseconds()
	}
	if len(asks) == 1 {
		return t.lockRow, []any{[]byte(asks[0].Name), []byte(asks[0].Owner), lease(asks[0])}
	}
	text := []byte(t.lockRows[0])
	for i, a := range asks {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = append(sqltable.AppendLiteral(append(text, '('), a.Name), ", "...)
		text = append(sqltable.AppendLiteral(text, a.Owner), ", "...)
		text = append(strconv.AppendInt(text, lease(a), 10), ')')
	}
	return string(append(text, t.lockRows[1]...)), nil
}

// Free releases rows.
func (t *tableRows) Free(ctx context.Context, asks []*leasetable.Ask) error {
	text := t.freeRow
	var names, pairs []any
	for _, a := range asks {
		names = append(names, []byte(a.Name))
		pairs = append(pairs, []byte(a.Name), []byte(a.Owner))
	}
	if len(asks) > 1 {
		text = strings.NewReplacer("{n}", parameters(len(asks)), "{pairs}", strings.Repeat("(?,?),", len(asks)-1)+"(?,?)").Replace(t.freeRows)
		pairs = append(names, pairs...)
	}
	return t.run(ctx, "release", "", func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, text, pairs...)
		return lockedRow(asks, err)
	})
}

// lockedRow marks the error of a statement for several owners that did not wait for a locked row: each
// asks again alone.
func lockedRow(asks []*leasetable.Ask, err error) error {
	if len(asks) > 1 && isNumber(err, lockWaitTimeout) {
		return fmt.Errorf("%w: %w", interlock.ErrHeld, err)
	}
	return err
}

// Renew sends one statement, and if not all rows were renewed another one that reads the lost ones.
func (t *tableRows) Renew(ctx context.Context, names, owners []string, ttl, patience time.Duration) (lost []string, err error) {
	var which []any
	for _, text := range slices.Concat(names, owners) {
		which = append(which, []byte(text))
	}
	bound := "max_statement_time = " + fraction(patience)
	if patience == 0 {
		bound = "max_statement_time = {limit}, innodb_lock_wait_timeout = 0"
	}
	query := func(text string) string {
		return t.options.sql(strings.NewReplacer("{bound}", bound, "{n}", parameters(len(names))).Replace(text))
	}
	err = t.run(ctx, "renew", "", func(ctx context.Context, conn *sql.Conn) error {
		done, err := conn.ExecContext(ctx, query(keepRows), append([]any{ttl.Microseconds()}, which...)...)
		if isNumber(err, statementTime) || isNumber(err, lockWaitTimeout) {
			err = fmt.Errorf("%w: %w", interlock.ErrHeld, err) // it may have waited for a row
		}
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == int64(len(owners)) {
			return err
		}
		ours, err := all(ctx, conn, query(keptRows), which, texts)
		lost = slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { return slices.Contains(ours, owner) })
		return err
	})
	return lost, err
}

// Sweep removes rows that were not used for a minute.
func (t *tableRows) Sweep(ctx context.Context) (more bool, err error) {
	found, err := t.sweep(ctx, sweepAfter)
	return found == sweepSize, err
}

func (t *tableRows) sweep(ctx context.Context, after time.Duration) (found int, err error) {
	err = t.run(ctx, "sweep", "", func(ctx context.Context, conn *sql.Conn) (err error) {
		found, err = sweepLeases(ctx, conn, t.options, after)
		return err
	})
	return found, err
}

// Show reads the rows of held locks.
func (t *tableRows) Show(ctx context.Context, op, name string, prefix bool, limit int) (locks []driver.LockState, err error) {
	err = t.run(ctx, op, name, func(ctx context.Context, conn *sql.Conn) (err error) {
		locks, err = show(ctx, conn, t.options.sql(showRows), name, prefix, limit)
		return err
	})
	return locks, ofRead(ctx, op, name, err)
}

// States returns for each name the counter, and whether the lock is held.
func (t *tableRows) States(ctx context.Context, prefix string) (found map[string]string, err error) {
	err = t.run(ctx, "watch", prefix, func(ctx context.Context, conn *sql.Conn) (err error) {
		found, err = states(ctx, conn, t.options.sql(`select name, concat(counter, ' ', owner <> x'' and expires > {now}) from {ns}_lease where `), prefix)
		return err
	})
	return found, ofRead(ctx, "watch", prefix, err)
}

// Breaks reads the records.
func (t *tableRows) Breaks(ctx context.Context, name string, limit int) (records []driver.BreakRecord, err error) {
	err = t.run(ctx, "list breaks", name, func(ctx context.Context, conn *sql.Conn) (err error) {
		records, err = breaks(ctx, conn, t.options.sql("{ns}_lease_break"), name, limit)
		return err
	})
	return records, ofRead(ctx, "list breaks", name, err)
}

// Break releases a lock by force, in one transaction.
func (t *tableRows) Break(ctx context.Context, b driver.Break) (record *driver.BreakRecord, err error) {
	err = t.run(ctx, "break", b.Name, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer tx.Rollback()
		record, err = t.breakIn(ctx, tx, b)
		if err == nil && record != nil {
			err = failed(ctx, inCommit, tx.Commit())
		}
		return err
	})
	return record, err
}

func (t *tableRows) breakIn(ctx context.Context, tx *sql.Tx, b driver.Break) (*driver.BreakRecord, error) {
	var counter, at int64
	found, err := maybe(ctx, tx, t.options.sql(`select counter from {ns}_lease where name = ? and owner = ? and expires > {now} for update`),
		[]any{[]byte(b.Name), []byte(b.Owner)}, &counter)
	if err != nil || !found {
		return nil, err
	}
	err = one(ctx, tx, t.options.sql(`insert into {ns}_lease_break (name, owner, reason, who, counter, at) values (?, ?, ?, ?, ?, {now})
		returning timestampdiff(microsecond, '2020-01-01', at)`),
		[]any{[]byte(b.Name), []byte(b.Owner), []byte(b.Reason), []byte(b.By), counter}, &at)
	if err == nil {
		_, err = tx.ExecContext(ctx, t.freeRow, []byte(b.Name), []byte(b.Owner))
	}
	if err != nil {
		return nil, err
	}
	record, err := leasetable.Broken(b, counter, serverTime(at))
	return &record, err
}

// run runs statements, within the bound of one. If the tables are missing, the next call creates them.
func (t *tableRows) run(ctx context.Context, op, name string, statements func(context.Context, *sql.Conn) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, t.options.statementTimeout(), errNoAnswer)
	defer cancel()
	conn, err := t.db.Conn(bounded)
	if err != nil { // nothing was sent
		return failure.About(op, name, failed(ctx, inBegin, fmt.Errorf("no connection of the pool: %w", err)))
	}
	defer conn.Close()
	if err = t.ready(bounded, conn); err == nil {
		err = statements(bounded, conn)
	}
	if isNumber(err, noTable) {
		t.mu.Lock()
		t.missing = true
		t.mu.Unlock()
	}
	return ofStatement(bounded, op, name, err)
}

// ready creates the tables, if they were missing at the last use.
func (t *tableRows) ready(ctx context.Context, q querier) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.missing {
		return nil
	}
	err := create(ctx, q, t.options, tableSchema, "{ns}_lease", "{ns}_lease_swept", "{ns}_lease_break")
	if err == nil { // a row that is missing cannot be locked
		_, err = q.ExecContext(ctx, t.options.sql(`insert ignore into {ns}_lease_swept (id, counter) values (1, 0)`))
	}
	t.missing = err != nil
	return err
}
