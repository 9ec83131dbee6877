package journal

import (
	"context"
	"fmt"
	"strings"
	"time"

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
