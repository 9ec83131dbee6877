package barrier

import (
	"context"
	"strings"
	"time"
)

// mariadb keeps rows in MariaDB.
//
// The low-water mark is one row, shared by every call until its transaction ends, by
// a read that locks and so sees what was committed last, whatever the transaction's
// snapshot shows. Locks are granted in turn there, so that a mark is not kept waiting
// by ever new calls; those wait behind it, for a second at most.
//
// No count of affected rows is relied on but that of rows which certainly change. An
// assignment sees those before it: previous and remaining come first, and the others
// go by them. An empty text is written in hexadecimal digits: there is a sql_mode
// that makes it NULL.
type mariadb struct{}

// create compares names by their bytes. CREATE ends the transaction.
func (mariadb) create() []string {
	const name = ` varchar(10) character set ascii collate ascii_bin not null`
	return []string{
		`create table if not exists {rows} (
			transaction_id varbinary(200) not null,
			branch varbinary(255) not null,
			step varbinary(255) not null,
			state` + name + ` check (state in ` + states() + `),
			previous` + name + `,
			hash varbinary(32) not null,
			known int not null,
			result longblob not null,
			busy bigint not null,
			remaining bigint not null,
			attempts bigint not null,
			begun bigint not null,
			primary key (transaction_id, branch, step),
			index begun (begun)) engine = InnoDB`,
		`create table if not exists {marks} (only_row int not null primary key, mark bigint not null,
			excepted ` + mariadb{}.excepted() + `) engine = InnoDB`,
		`insert into {marks} (only_row, mark) values (1, 0) on duplicate key update only_row = 1`,
	}
}

// nowMaria is the same in all of a statement.
const nowMaria = `timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))`

const claimMaria = `
insert into {rows} (transaction_id, branch, step, state, previous, hash, known, result, busy, remaining, attempts, begun)
select ?, ?, {empty?}, '{first}', 'absent', {empty?}, {known}, {empty?}, {lease}, 0, 1, ?
from {marks} where only_row = 1 and (? >= mark or position(? in excepted) > 0) {there} lock in share mode
on duplicate key update
	previous = state,
	remaining = greatest(0, busy - {now}),
	attempts = if({ready}, attempts + 1, attempts),
	busy = if({ready}, values(busy), busy),
	result = if({replace} and {ready}, values(result), result),
	state = if({ready}, {moved}, state)
returning previous, hash, known, result, remaining, attempts`

const readyMaria = `(previous in {moving} and remaining = 0
		and (hash = values(hash) or hash = x'' or values(hash) = x''))`

func (m mariadb) claim(c claim, lease time.Duration) (string, []any) {
	args := []any{c.Transaction, c.Branch, c.Step, filled(c.hash), filled(c.result)}
	leased, there := `0`, ``
	if c.outside {
		leased = `{now} + ?`
		args = append(args, lease.Microseconds())
	}
	args = append(args, c.begun(), c.begun(), needle(c.Transaction))
	if c.event == finish {
		there = `and exists (select 1 from {rows} as b where b.transaction_id = ? and b.branch = ? and b.step = {empty?} for update)`
		args = append(args, c.Transaction, c.Branch, c.Step)
	}
	query := strings.ReplaceAll(claimMaria, "{ready}", readyMaria)
	return m.text(c.filled(query, "previous", leased, there, nowMaria)), args
}

func (mariadb) schema() string { return `database()` }

func (mariadb) excepted() string {
	return `mediumtext character set ascii collate ascii_bin not null default ','`
}

func (mariadb) mark() string {
	return `select mark, excepted from {marks} where only_row = 1 lock in share mode`
}

func (mariadb) text(query string) string {
	return strings.ReplaceAll(query, "{empty?}", "coalesce(?, x'')")
}

func (mariadb) raise() []string {
	return []string{`set statement innodb_lock_wait_timeout = 1 for
update {marks} set mark = ?, excepted = ? where only_row = 1 and mark < ? and ? <= ` + nowMaria + ` div 1000`}
}

// remove looks without locks and deletes by key: a delete by age would lock the gaps
// into which new rows go.
func (mariadb) remove(ctx context.Context, l lender, limit int) (int, error) {
	var where []string
	var args []any
	err := l.Query(ctx, l.within(`select transaction_id, branch, step from {rows}
where begun < (select mark from {marks} where only_row = 1) - ?
and position(concat(',', lower(hex(transaction_id)), ',') in (select excepted from {marks} where only_row = 1)) = 0 order by begun limit ?`), []any{spread, int64(limit)}, func(scan func(...any) error) error {
		var id, branch, step []byte
		err := scan(&id, &branch, &step)
		where = append(where, isRow)
		args = append(args, id, branch, step)
		return err
	})
	if err != nil || len(where) == 0 {
		return 0, err
	}
	n, err := l.exec(ctx, `delete b from {rows} as b force index (primary) where `+strings.Join(where, " or "), args...)
	return int(n), err
}
