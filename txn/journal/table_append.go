package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// append does each append atomically, and sets in errs the errors of refused ones. It skips
// appends that have an error. If append itself returns an error, the database failed and nothing
// was done, whatever errs contains.
//
// Outside of lent transactions it does not wait for row locks: an append to a row that another
// transaction has locked fails with [interlock.ErrHeld]. On MariaDB all appends fail if one
// begins a transaction that another one has begun.
func (n tables) append(ctx context.Context, appends []driver.Append, errs []error) error {
	var asked []int
	for i := range appends {
		if errs[i] == nil {
			asked = append(asked, i)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	if n.Maria() {
		return n.appendMaria(ctx, appends, asked, errs)
	}
	return n.appendPostgres(ctx, appends, asked, errs)
}

// appendStatement checks epochs, positions and the number of shards, and writes heads and
// records, in one atomic statement. It returns the refused appends, with the values they
// were checked against, and those that end their transaction.
//
//   - The marks and the number of shards stay locked against changes until the commit.
//   - Heads are locked and written by their key: a join would scan the whole table while it
//     is small, and a prepared statement would keep that plan.
//   - Parameters are in subqueries, where the planner cannot see the length of arrays. Otherwise
//     the server would plan again for each length, which takes longer than the rest.
//   - The lock on an id comes before its INSERT, which would wait for another transaction
//     that inserts the same id.
const appendStatement = `with marks as materialized (
	select resource, token from {marks} where resource = any((select ?::text[])::text[]) order by resource for share {skip}),
stored as materialized (
	select shards from {layout} where id = 1 and 0 < (select ?::bigint) for share {skip}),
asked as materialized (
	select v.*, m.token, s.shards as stored, coalesce(v.epoch = 0 or v.epoch = m.token, false) as owned
	from unnest((select ?::varchar[]), (select ?::int[]), (select ?::bytea[]), (select ?::bigint[]), (select ?::bigint[]), (select ?::bytea[]),
		(select ?::bigint[]), (select ?::bigint[]), (select ?::bigint[]), (select ?::bytea[]))
		with ordinality as v (id, shard, type, after, position, sum, due, epoch, shards, content, n)
	left join marks m on m.resource = 'journal shard ' || v.shard left join stored s on true),
found as materialized (
	select h.* from asked v cross join lateral (select id, shard, type, position, ended, began from {heads} where id = v.id for update {skip}) h
	where v.owned),
begun as (
	insert into {heads} (` + headColumns + `)
	select v.id, v.shard, v.type, v.position, v.sum, nullif(v.due, 0), 0, case v.due when 0 then {micros now} end, {micros now}
	from asked v where v.owned and v.after = 0 and (v.shards = 0 or v.shards = v.stored) and {lock id}
	on conflict (id) do nothing returning id, began, ended),
moved as (
	insert into {heads} (` + headColumns + `)
	select v.id, v.shard, f.type, v.position, v.sum, nullif(v.due, 0), 0, case v.due when 0 then {micros now} end, f.began
	from asked v join found f on f.id = v.id where f.position = v.after and f.shard = v.shard and f.ended is null
` + moved + `returning id, ended),
grown as (
	select id, began, ended from begun union all select id, null, ended from moved),
written as (
	insert into {records} (` + recordColumns + `)
	select v.id, v.after + 1, v.content, v.epoch, coalesce(g.began, {micros now}) from asked v join grown g on g.id = v.id)
select v.n, g.ended, v.token, v.stored from asked v left join grown g on g.id = v.id where g.id is null or g.ended is not null`

// moved is what an append changes in the head of its transaction.
const moved = `
	on conflict (id) do update set position = excluded.position, sum = excluded.sum, due = excluded.due, claimed = 0, ended = excluded.ended
	`

// checked has the values that an append was checked against.
type checked struct {
	token, stored *int64 // nil without one, or while another transaction is changing it
}

func (n tables) appendPostgres(ctx context.Context, appends []driver.Append, asked []int, errs []error) error {
	if len(asked) == 1 {
		if done, err := n.appendOne(ctx, &appends[asked[0]]); done || err != nil {
			return err
		}
	}
	refused := map[int]checked{}
	err := n.Each(ctx, n.locking(appendStatement), arguments(n.Arrays(), appends, asked), func(scan func(...any) error) error {
		var k int64
		var ended *int64
		var c checked
		err := scan(&k, &ended, &c.token, &c.stored)
		switch {
		case err != nil:
		case ended != nil:
			appends[asked[k-1]].Ended = time.UnixMicro(*ended).UTC()
		default:
			refused[asked[k-1]] = c
		}
		return err
	})
	if err != nil || len(refused) == 0 {
		return err
	}
	err = n.refuse(ctx, appends, refused, errs)
	if err != nil && n.alone { // the other appends are committed
		for i := range refused {
			errs[i] = failure.Uncommitted(err)
		}
		return nil
	}
	return err
}

// locking returns a statement that waits for locked rows only in a lent transaction.
func (n tables) locking(query string) string {
	key := lockingKey{n.Quoted("heads"), query, n.lent}
	if known, ok := lockings.Load(key); ok {
		return known.(string)
	}
	skip := "skip locked"
	if n.lent {
		skip = ""
	}
	text := strings.NewReplacer("{skip}", skip, "{lock id}", n.lockID()).Replace(query)
	lockings.Store(key, text)
	return text
}

// lockings are the texts of locking, which are as long as the parameters of a group.
var lockings sync.Map // by lockingKey

type lockingKey struct {
	heads, query string
	lent         bool
}

// beginOne, moveOne and writeOne are appendStatement for one append: the begin of a transaction by a
// process that does not own the shard, or an append of the owner. They have no arrays, and take half
// of the time.
const (
	beginOne = `with stored as materialized (
	select shards from {layout} where id = 1 for share {skip}),
grown as (
	insert into {heads} (` + headColumns + `)
	select v.id, ?::int, ?::bytea, ?::bigint, ?::bytea, ?::bigint, 0, null, {micros now}
	from (select ?::varchar as id) v, stored where stored.shards = ?::bigint and {lock id}
	on conflict (id) do nothing returning id, began as written, ended),` + writeOne
	moveOne = `with mark as materialized (
	select token from {marks} where resource = ?::text for share {skip}),
found as materialized (
	select id, shard, type, began from {heads} where id = ?::varchar and shard = ?::int and position = ?::bigint and ended is null
		and exists (select from mark where token = ?::bigint) for update {skip}),
grown as (
	insert into {heads} (` + headColumns + `)
	select id, shard, type, ?::bigint, ?::bytea, v.due, 0, case when v.due is null then {micros now} end, began from found, (select ?::bigint as due) v
` + moved + `returning id, {micros now} as written, ended),` + writeOne
	writeOne = `
written as (
	insert into {records} (` + recordColumns + `)
	select id, ?::bigint, ?::bytea, ?::bigint, written from grown)
select ended from grown`
)

// appendOne does an append by the statements for one, and reports whether it did. If not, nothing
// was done: appendStatement returns the reason.
func (n tables) appendOne(ctx context.Context, a *driver.Append) (done bool, err error) {
	position, sum := a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum
	var query string
	var args []any
	switch {
	case a.After == 0 && a.Epoch == 0 && a.Shards != 0 && !a.Due.IsZero():
		query = beginOne
		args = []any{int64(a.Shard), []byte(a.Type), position, sum, due(a.Due), a.Transaction, int64(a.Shards)}
	case a.After != 0 && a.Epoch != 0:
		query = moveOne
		args = []any{driver.ShardName(a.Shard), a.Transaction, int64(a.Shard), a.After, int64(a.Epoch), position, sum, due(a.Due)}
	default:
		return false, nil
	}
	args = append(args, a.After+1, pack(nil, a.Records), int64(a.Epoch))
	var ended *int64
	done, err = n.Row(ctx, n.locking(query), args, &ended)
	if ended != nil {
		a.Ended = time.UnixMicro(*ended).UTC()
	}
	return done, err
}

// arguments returns the parameters of appendStatement.
func arguments(in sqltable.Arrays, appends []driver.Append, asked []int) []any {
	numbers := func(size int) []int64 { return make([]int64, 0, size) }
	marked := make([]int, 0, len(asked))
	ids, types, sums := make([]string, 0, len(asked)), make([]string, 0, len(asked)), make([][]byte, 0, len(asked))
	shards, after, positions := numbers(len(asked)), numbers(len(asked)), numbers(len(asked))
	dues, epochs, layouts := numbers(len(asked)), numbers(len(asked)), numbers(len(asked))
	contents, size := make([][]byte, 0, len(asked)), 0
	for _, i := range asked {
		size += bytesOf(appends[i])
	}
	packed := make([]byte, 0, size) // of all appends, in one allocation
	begins := int64(0)
	for _, i := range asked {
		a := appends[i]
		end, layout, due := a.After+int64(len(a.Records)), int64(0), int64(0)
		if !a.Due.IsZero() {
			due = a.Due.UnixMilli()
		}
		if a.Epoch != 0 {
			marked = append(marked, a.Shard)
		}
		if a.After == 0 && a.Shards != 0 {
			layout = int64(a.Shards)
			begins++
		}
		ids, shards, types = append(ids, a.Transaction), append(shards, int64(a.Shard)), append(types, a.Type)
		after, positions, sums = append(after, a.After), append(positions, end), append(sums, a.Records[len(a.Records)-1].Sum)
		dues, epochs, layouts = append(dues, due), append(epochs, int64(a.Epoch)), append(layouts, layout)
		from := len(packed)
		packed = pack(packed, a.Records)
		contents = append(contents, packed[from:])
	}
	slices.Sort(marked)
	marks := make([]string, 0, len(marked))
	for _, shard := range slices.Compact(marked) {
		marks = append(marks, driver.ShardName(shard))
	}
	return []any{in.Texts(marks), begins, in.Texts(ids), in.Numbers(shards), in.TextBytes(types), in.Numbers(after), in.Numbers(positions), in.Bytes(sums),
		in.Numbers(dues), in.Numbers(epochs), in.Numbers(layouts), in.Bytes(contents)}
}

// refuse sets the errors of refused appends. If an append fits by now, another transaction
// had locked its rows.
func (n tables) refuse(ctx context.Context, appends []driver.Append, refused map[int]checked, errs []error) error {
	v := values{}
	for i := range refused {
		v.row("", appends[i].Transaction)
	}
	found := map[string]driver.Head{}
	heads, err := n.query(ctx, `where id in (`+v.text.String()+`)`+n.latest(), v.args)
	for _, h := range heads {
		found[h.Transaction] = h
	}
	for i, c := range refused {
		a := appends[i]
		if err == nil && a.Epoch != 0 {
			errs[i], err = n.checkEpoch(ctx, a, c.token)
		}
		if err == nil && errs[i] == nil {
			errs[i] = fits(a, found[a.Transaction])
		}
		if err == nil && errs[i] == nil && a.After == 0 && a.Shards != 0 {
			errs[i], err = n.checkShards(ctx, a, c.stored)
		}
		if errs[i] == nil {
			errs[i] = inUse("append", a.Transaction)
		}
	}
	return err
}

// checkEpoch refuses an epoch other than the entered one. Without a mark no epoch has entered,
// or another transaction is entering one.
func (n tables) checkEpoch(ctx context.Context, a driver.Append, token *int64) (refusal, err error) {
	if token != nil {
		return owned("append", a.Shard, interlock.Token(*token), a.Epoch), nil
	}
	name := driver.ShardName(a.Shard)
	mark, err := n.marks.Show(ctx, n.SQL(), name)
	if err == nil && mark.Token != 0 {
		return inUse("append", name), nil
	}
	return owned("append", a.Shard, 0, a.Epoch), err
}

// checkShards refuses a number of shards other than the stored one. If stored is nil, none is
// stored, or another transaction is changing it.
func (n tables) checkShards(ctx context.Context, a driver.Append, stored *int64) (refusal, err error) {
	if stored == nil {
		number, err := n.shards(ctx, "")
		if number != 0 {
			return inUse("append", a.Transaction), err
		}
		return &driver.ShardsError{Opened: a.Shards}, err
	}
	if *stored == int64(a.Shards) {
		return nil, nil
	}
	return &driver.ShardsError{Stored: int(*stored), Opened: a.Shards}, nil
}

// inUse returns the error for a row that another transaction has locked.
func inUse(op, name string) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Retryable,
		Err: fmt.Errorf("%w: a transaction that has not ended is using it", interlock.ErrHeld)}
}

// owned refuses an epoch other than the entered one.
func owned(op string, shard int, seen, got interlock.Token) error {
	name := driver.ShardName(shard)
	switch {
	case seen > got:
		return &interlock.Error{Op: op, Name: name, Kind: interlock.Definite,
			Err: &interlock.StaleTokenError{Resource: name, Seen: seen, Got: got}}
	case seen < got:
		return failure.Bug(op, name, "no owner has entered with epoch %d", got)
	}
	return nil
}

// fits refuses an append at another position, to an ended transaction, or in another shard.
func fits(a driver.Append, h driver.Head) error {
	switch {
	case h.Position != a.After || !h.Ended.IsZero():
		return &driver.PositionError{Transaction: a.Transaction, After: a.After, Found: h}
	case h.Shard != a.Shard && h.Position > 0:
		return failure.Bug("append", a.Transaction, "it is in shard %d, not in %d", h.Shard, a.Shard)
	}
	return nil
}

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
