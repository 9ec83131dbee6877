package journal

import (
	"context"
	"encoding/binary"
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

// Append does each append atomically. One transaction does up to maxAppends appends of
// at most maxBytes; see driver.Journal.
func (t *Table[T]) Append(ctx context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	for begin := 0; begin < len(appends); {
		end := begin + 1
		for size := bytesOf(appends[begin]); end < len(appends) && end-begin < maxAppends && size+bytesOf(appends[end]) <= maxBytes; end++ {
			size += bytesOf(appends[end])
		}
		part := errs[begin:end]
		for i := range part {
			part[i] = driver.CheckAppend(appends[:end], begin+i)
		}
		done, err := false, error(nil)
		if len(part) == 1 && part[0] == nil {
			done, err = t.appendLone(ctx, &appends[begin])
		}
		write := func(n tables) error { return n.append(ctx, appends[begin:end], part) }
		if !done && err == nil {
			done, err = t.alone(ctx, "append", appends[begin].Transaction, write)
		}
		if !done && err == nil {
			err = t.change(ctx, "append", appends[begin].Transaction, write)
		}
		for i := range part {
			if err != nil && (part[i] == nil || interlock.Kind(part[i]) != interlock.Bug) {
				part[i] = failure.About("append", appends[begin+i].Transaction, err)
			}
		}
		begin = end
	}
	return errs
}

// The bounds of one transaction of Append.
const (
	maxAppends = 200
	maxBytes   = 4 << 20
)

func bytesOf(a driver.Append) int {
	size := len(a.Transaction)
	for _, r := range a.Records {
		size += len(r.Data) + len(r.Step) + 100
	}
	return size
}

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

const headColumns = `id, shard, type, position, sum, due, claimed, ended, began`

const recordColumns = `id, position, content, epoch, written`

// pack appends the records of an append to b, as one row has them: each field after its length.
func pack(b []byte, records []driver.Record) []byte {
	for _, r := range records {
		b = packField(packField(packField(packField(b, r.Kind), r.Step), r.Data), r.Sum)
	}
	return b
}

func packField[T string | []byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// oid returns the oid of the table of heads, as SQL of PostgreSQL.
func (n tables) oid() string {
	return `'` + strings.ReplaceAll(n.Quoted("heads"), `'`, `''`) + `'::regclass::oid::bigint`
}

// lockID returns the condition, on PostgreSQL, that no other transaction is beginning the
// transaction v.id or storing a payload of it. Only a lent one waits.
func (n tables) lockID() string {
	if n.lent {
		return `pg_advisory_xact_lock(hashtextextended(v.id, ` + n.oid() + `)) is not null`
	}
	return `pg_try_advisory_xact_lock(hashtextextended(v.id, ` + n.oid() + `))`
}

// due returns a time in milliseconds since 1970, or nil for null.
func due(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
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
