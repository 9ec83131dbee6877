package fence

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// mariadb keeps marks in MariaDB.
//
// Marks are read by statements that lock, which see what was committed last.
// Reads that do not lock may show a snapshot that the transaction took with its
// first such read: InnoDB lets a transaction write on top of what its snapshot
// does not show. Who had read before it entered is therefore refused if the mark
// in its snapshot is not the one that was locked.
//
// No count of affected rows is relied on: whether it counts the rows that were
// found or those that were changed is an option of the client. An empty text is
// written in hexadecimal digits: there is a sql_mode that makes it NULL.
type mariadb struct{}

// mariadbLimit is the highest plausible token, as postgresLimit.
var mariadbLimit = fmt.Sprintf("(((timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - %d + %d) << %d) | %d)",
	int64(interlock.EpochUnixMicro), interlock.MaxAhead.Microseconds(), bits.Len(interlock.MaxSub), interlock.MaxSub)

// create compares resources by their bytes. CREATE ends the transaction.
func (mariadb) create(marks, audit string) []string {
	return []string{
		`create table if not exists ` + marks + ` (
			resource varbinary(512) not null primary key,
			token bigint not null,
			previous bigint not null,
			entries bigint not null,
			source longtext not null,
			raised_at datetime(6) not null) engine = InnoDB default charset = utf8mb4`,
		`create table if not exists ` + audit + ` (
			id bigint not null auto_increment primary key,
			resource varbinary(512) not null,
			from_token bigint not null,
			to_token bigint not null,
			reason longtext not null,
			rebased_by longtext not null,
			rebased_at datetime(6) not null) engine = InnoDB default charset = utf8mb4`,
	}
}

// enterMaria is one statement, as enterTable. An assignment may see those before
// it, so that token comes last. Column entries makes every entry a change.
const enterMaria = `
insert into %[1]s (resource, token, previous, entries, source, raised_at)
select ?, ?, 0, 1, coalesce(?, x''), utc_timestamp(6) from dual where ? <= %[2]s
on duplicate key update
	previous = token,
	entries = entries + 1,
	source = if(token < values(token), values(source), source),
	raised_at = if(token < values(token), values(raised_at), raised_at),
	token = greatest(token, values(token))
returning previous`

func (mariadb) enter(ctx context.Context, db driver.SQL, table string, e entry) (seen interlock.Token, plausible bool, err error) {
	if !nothingRead(db) {
		if err := upToDate(ctx, db, table, e); err != nil {
			return 0, false, err
		}
	}
	plausible, err = row(ctx, db, fmt.Sprintf(enterMaria, table, mariadbLimit),
		[]any{e.resource, int64(e.token), e.source, int64(e.token)}, (*int64)(&seen))
	return seen, plausible, err
}

// touchMaria locks a mark, and changes nothing but that it exists. A look FOR
// UPDATE at a mark that does not exist would lock a gap, and two who look would
// keep each other from filling it.
const touchMaria = `
insert into %[1]s (resource, token, previous, entries, source, raised_at)
select ?, 0, 0, 0, x'', utc_timestamp(6) from dual where ? <= %[2]s
on duplicate key update resource = values(resource)
returning entries, token, source, timestampdiff(microsecond, '1970-01-01', raised_at)`

// touched is a mark that is locked.
type touched struct {
	entries int64 // 0 if nothing has entered
	mark    driver.Mark
}

func touch(ctx context.Context, db driver.SQL, table, resource string, token interlock.Token) (was touched, plausible bool, err error) {
	var raised int64
	plausible, err = row(ctx, db, fmt.Sprintf(touchMaria, table, mariadbLimit), []any{resource, int64(token)},
		&was.entries, (*int64)(&was.mark.Token), &was.mark.Source, &raised)
	if was.entries == 0 {
		return touched{}, plausible, err
	}
	was.mark.Raised = time.UnixMicro(raised).UTC()
	return was, plausible, err
}

// upToDate fails if the transaction reads from before the last entry.
func upToDate(ctx context.Context, db driver.SQL, table string, e entry) error {
	was, _, err := touch(ctx, db, table, e.resource, e.token)
	if err != nil || was.entries == 0 {
		return err
	}
	var read int64
	_, err = row(ctx, db, `select entries from `+table+` where resource = ?`, []any{e.resource}, &read)
	if err == nil && read != was.entries {
		err = outdated(e.resource)
	}
	return err
}

func outdated(resource string) error {
	return &interlock.Error{Op: "enter", Driver: "mariadb", Name: resource, Kind: interlock.Retryable,
		Err: errors.New("the transaction had read before it entered, and reads from before the last entry")}
}

func (mariadb) enterColumn(ctx context.Context, db driver.SQL, q columns, e entry) (f found, err error) {
	where := sqltext.ExactlyMaria(q.key)
	query := fmt.Sprintf(`select coalesce(%s, 0), ? <= %s from %s where %s for update`, q.column, mariadbLimit, q.table, where)
	err = db.Query(ctx, query, []any{int64(e.token), e.resource, e.resource}, func(scan func(...any) error) error {
		f.rows++
		return scan((*int64)(&f.seen), &f.plausible)
	})
	if err != nil || f.rows != 1 || !f.plausible || f.seen > e.token || e.strict && f.seen == e.token {
		return f, err
	}
	if !nothingRead(db) {
		read := interlock.Token(-1)
		query = fmt.Sprintf(`select coalesce(%s, 0) from %s where %s`, q.column, q.table, where)
		_, err = row(ctx, db, query, []any{e.resource, e.resource}, (*int64)(&read))
		if err == nil && read != f.seen {
			err = outdated(e.resource)
		}
		if err != nil {
			return f, err
		}
	}
	f.raised = true
	if f.seen == e.token {
		return f, nil
	}
	_, err = db.Exec(ctx, fmt.Sprintf(`update %s set %s = ? where %s`, q.table, q.column, where), int64(e.token), e.resource, e.resource)
	return f, err
}

func (mariadb) shared() string { return `lock in share mode` }

func (mariadb) show(ctx context.Context, db driver.SQL, table, resource string) (m driver.Mark, err error) {
	var raised int64
	found, err := row(ctx, db, `select token, source, timestampdiff(microsecond, '1970-01-01', raised_at) from `+table+` where resource = ?`,
		[]any{resource}, (*int64)(&m.Token), &m.Source, &raised)
	if found {
		m.Raised = time.UnixMicro(raised).UTC()
	}
	return m, err
}

func (mariadb) rebase(ctx context.Context, db driver.SQL, marks, audit string, r rebase) (old driver.Mark, plausible bool, err error) {
	was, plausible, err := touch(ctx, db, marks, r.resource, r.to)
	if err != nil || !plausible {
		return driver.Mark{}, plausible, err
	}
	_, err = db.Exec(ctx, `update `+marks+` set previous = ?, token = ?, entries = entries + 1, source = ?, raised_at = utc_timestamp(6)
		where resource = ?`, int64(was.mark.Token), int64(r.to), label(driver.RebaseSource(r.by, r.reason)), r.resource)
	if err != nil {
		return driver.Mark{}, true, err
	}
	_, err = db.Exec(ctx, `insert into `+audit+` (resource, from_token, to_token, reason, rebased_by, rebased_at)
		values (?, ?, ?, ?, ?, utc_timestamp(6))`, r.resource, int64(was.mark.Token), int64(r.to), label(r.reason), label(r.by))
	return was.mark, true, err
}
