package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// beginLone and moveLone do an append on MariaDB: the begin of a transaction by a process that does
// not own the shard, or an append of the owner. They skip locked rows.
const (
	beginLone = `
begin
	declare v_now bigint default {micros now};
	declare v_shards bigint default 0;
	declare continue handler for not found begin end;
	select shards into v_shards from {layout} where id = 1 {share} skip locked;
	if v_shards = %[1]d then
		set statement innodb_lock_wait_timeout = 0 for insert ignore into {heads} (` + headColumns + `)
			values (%[2]s, %[3]d, %[4]s, %[5]d, %[6]s, %[7]s, 0, null, v_now);
		set v_done = row_count();
	end if;
	if v_done then`
	moveLone = `
begin
	declare v_now bigint default {micros now};
	declare v_token, v_position bigint default 0;
	declare continue handler for not found begin end;
	select token into v_token from {marks} where resource = %[8]s {share} skip locked;
	if v_token = %[9]d then
		select position into v_position from {heads} where id = %[2]s and shard = %[3]d and ended is null for update skip locked;
	end if;
	if v_position = %[10]d then
		set v_done = 1;
		set v_value = %[11]s;
		update {heads} set position = %[5]d, sum = %[6]s, due = %[7]s, claimed = 0, ended = v_value where id = %[2]s;`
	writeLone = `
		insert into {records} (` + recordColumns + `) values (%[2]s, %[12]d, %[13]s, %[9]d, v_now);
	end if;
end;`
)

// appendLone does an append in one request, and reports whether it did. If not, nothing was done, and
// an append among others returns the reason.
func (t *Table[T]) appendLone(ctx context.Context, a *driver.Append) (done bool, err error) {
	db, ok := t.db.(driver.Atomic)
	if !ok || ctx.Err() != nil || strings.Contains(t.name, "%") {
		return false, nil
	}
	var query string
	switch {
	case a.After == 0 && a.Epoch == 0 && a.Shards != 0 && !a.Due.IsZero():
		query = beginLone
	case a.After != 0 && a.Epoch != 0:
		query = moveLone
	default:
		return false, nil
	}
	n, err := t.in("append", a.Transaction, maria{})
	if err != nil {
		return false, err
	}
	last, dueAt, ended := a.Records[len(a.Records)-1], "null", "v_now"
	if !a.Due.IsZero() {
		dueAt, ended = fmt.Sprint(a.Due.UnixMilli()), "null"
	}
	id := sqltable.Literal(a.Transaction)
	text := fmt.Sprintf(n.Text(query+writeLone), a.Shards, id, a.Shard, sqltable.Literal(a.Type), a.After+int64(len(a.Records)), sqltable.Literal(last.Sum), dueAt,
		sqltable.Literal(driver.ShardName(a.Shard)), int64(a.Epoch), a.After, ended, a.After+1, sqltable.Literal(pack(nil, a.Records)))
	done, value, err := db.Atomically(ctx, driver.ReadCommitted, text)
	if done && value != nil {
		a.Ended = time.UnixMicro(*value).UTC()
	}
	return done, n.Failed(err)
}

// maria is the dialect of statements that another one runs.
type maria struct{ driver.SQL }

func (maria) Dialect() driver.Dialect { return driver.MariaDB }

// appendMaria is append on MariaDB, in several statements. All appends lock rows in the order
// of their ids.
func (n tables) appendMaria(ctx context.Context, appends []driver.Append, asked []int, errs []error) error {
	checks, err := n.check(ctx, appends, asked)
	if err != nil {
		return err
	}
	slices.SortFunc(asked, func(i, j int) int { return strings.Compare(appends[i].Transaction, appends[j].Transaction) })
	begun, err := n.begin(ctx, appends, asked, checks)
	if err != nil {
		return err
	}
	found, err := n.lock(ctx, appends, asked, checks, begun)
	if err != nil {
		return err
	}
	var grown []int
	refused := map[int]checked{}
	for _, i := range asked {
		a := appends[i]
		if h := found[a.Transaction]; begun[a.Transaction] != 0 || h.Position > 0 && fits(a, h) == nil {
			grown = append(grown, i)
		} else {
			refused[i] = checks[i]
		}
	}
	if err = n.move(ctx, appends, grown, begun, found); err == nil {
		err = n.write(ctx, appends, grown, begun)
	}
	if err == nil && len(refused) > 0 {
		err = n.refuse(ctx, appends, refused, errs)
	}
	return err
}

// check locks and returns the values that appends are checked against, until the commit: the
// marks of their shards, and the number of shards if an append needs it.
func (n tables) check(ctx context.Context, appends []driver.Append, asked []int) (map[int]checked, error) {
	var shards []string
	var stored *int64
	begins := false
	for _, i := range asked {
		a := appends[i]
		if name := driver.ShardName(a.Shard); a.Epoch != 0 && !slices.Contains(shards, name) {
			shards = append(shards, name)
		}
		begins = begins || a.After == 0 && a.Shards != 0
	}
	share, locking := n.marks.ShareNow, ` {share} skip locked`
	if n.lent {
		share, locking = n.marks.Share, ` {share}`
	}
	tokens, err := share(ctx, n.SQL(), shards...)
	if err == nil && begins {
		var number int
		if number, err = n.shards(ctx, locking); number != 0 {
			stored = new(int64)
			*stored = int64(number)
		}
	}
	checks := map[int]checked{}
	for _, i := range asked {
		checks[i] = checked{stored: stored}
		if token, ok := tokens[driver.ShardName(appends[i].Shard)]; ok {
			checks[i] = checked{(*int64)(&token), stored}
		}
	}
	return checks, err
}

// owned reports whether the append's epoch allows it.
func (c checked) owned(a driver.Append) bool {
	return a.Epoch == 0 || c.token != nil && interlock.Token(*c.token) == a.Epoch
}

// begins reports whether the append may begin its transaction.
func (c checked) begins(a driver.Append) bool {
	return a.After == 0 && c.owned(a) && (a.Shards == 0 || c.stored != nil && *c.stored == int64(a.Shards))
}

// begin inserts transactions that do not exist, and returns when each of them began. It fails
// at once if another transaction is inserting one of them. A lent transaction begins one.
func (n tables) begin(ctx context.Context, appends []driver.Append, asked []int, checks map[int]checked) (map[string]int64, error) {
	v := values{}
	for _, i := range asked {
		if a := appends[i]; checks[i].begins(a) {
			v.head(a, a.Type)
		}
	}
	if v.rows == 0 {
		return nil, nil
	}
	if n.lent { // a duplicate would lock the gap before it, under REPEATABLE READ
		if heads, err := n.query(ctx, `where id = ?`, v.args[:1]); err != nil || len(heads) > 0 {
			return nil, err
		}
	}
	begun := map[string]int64{}
	query := n.nowait() + `insert ignore into {heads} (` + headColumns + `) values ` + v.text.String() + ` returning id, began`
	err := n.Each(ctx, query, v.args, func(scan func(...any) error) error {
		var id []byte
		var began int64
		err := scan(&id, &began)
		begun[string(id)] = began
		return err
	})
	return begun, err
}

// lock finds and locks existing transactions, in the order of their ids.
func (n tables) lock(ctx context.Context, appends []driver.Append, asked []int, checks map[int]checked, begun map[string]int64) (map[string]driver.Head, error) {
	v := values{}
	for _, i := range asked {
		if a := appends[i]; begun[a.Transaction] == 0 && checks[i].owned(a) {
			v.row("", a.Transaction)
		}
	}
	found := map[string]driver.Head{}
	if v.rows == 0 {
		return found, nil
	}
	locking := `for update skip locked`
	if n.lent {
		locking = `for update`
	}
	heads, err := n.query(ctx, `where id in (`+v.text.String()+`) order by id `+locking, v.args)
	for _, h := range heads {
		found[h.Transaction] = h
	}
	return found, err
}

// move updates the heads of transactions, and sets Ended of appends that end theirs.
func (n tables) move(ctx context.Context, appends []driver.Append, grown []int, begun map[string]int64, found map[string]driver.Head) error {
	v := values{}
	for _, i := range grown {
		if a := appends[i]; begun[a.Transaction] == 0 {
			v.head(a, found[a.Transaction].Type)
		}
	}
	if v.rows == 0 {
		return nil
	}
	ends := map[string]*driver.Append{}
	for _, i := range grown {
		if appends[i].Due.IsZero() {
			ends[appends[i].Transaction] = &appends[i]
		}
	}
	query := `insert into {heads} (` + headColumns + `) values ` + v.text.String() + ` on duplicate key update
		position = values(position), sum = values(sum), due = values(due), claimed = 0, ended = values(ended)`
	if len(ends) == 0 {
		_, err := n.Exec(ctx, query, v.args...)
		return err
	}
	return n.Each(ctx, query+` returning id, ended`, v.args, func(scan func(...any) error) error {
		var id []byte
		var ended *int64
		err := scan(&id, &ended)
		if ended != nil {
			ends[string(id)].Ended = time.UnixMicro(*ended).UTC()
		}
		return err
	})
}

// write writes the records. Those of a new transaction have the time when it began.
func (n tables) write(ctx context.Context, appends []driver.Append, grown []int, begun map[string]int64) error {
	v := values{}
	for _, i := range grown {
		a := appends[i]
		written, args := now, []any{a.Transaction, a.After + 1, pack(nil, a.Records), int64(a.Epoch)}
		if began := begun[a.Transaction]; began != 0 {
			written, args = "", append(args, began)
		}
		v.row(written, args...)
	}
	if v.rows == 0 {
		return nil
	}
	_, err := n.Exec(ctx, `insert into {records} (`+recordColumns+`) values `+v.text.String(), v.args...)
	return err
}

// values builds the rows of a VALUES list.
type values struct {
	text strings.Builder
	args []any
	rows int
}

// row adds a row of parameters, followed by the expressions in last.
func (v *values) row(last string, args ...any) {
	if v.rows > 0 {
		v.text.WriteByte(',')
	}
	v.rows++
	v.text.WriteByte('(')
	for i, a := range args {
		if i > 0 {
			v.text.WriteByte(',')
		}
		v.args = append(v.args, a)
		v.text.WriteByte('?')
	}
	if last != "" {
		v.text.WriteString("," + last)
	}
	v.text.WriteByte(')')
}

// head adds the row of a transaction after an append.
func (v *values) head(a driver.Append, kind string) {
	ended := "null"
	if a.Due.IsZero() {
		ended = now
	}
	v.row(ended+`,`+now, a.Transaction, int64(a.Shard), []byte(kind), a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum, due(a.Due), int64(0))
}
