package journal

import (
	"context"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Claim moves due times; see driver.Journal. Transactions that somebody else
// has locked, since he appends or claims, are left out.
func (t *Table[T]) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) (heads []driver.Head, err error) {
	name := driver.ShardName(shard)
	if until.IsZero() {
		return nil, failure.Bug("claim", name, "until when is not said")
	}
	err = t.change(ctx, "claim", name, func(db driver.SQL, n tables) error {
		seen, err := n.marks.Share(ctx, db, name)
		if err == nil {
			err = owned("claim", shard, seen[name], epoch)
		}
		if err != nil {
			return err
		}
		heads, err = n.query(ctx, db, `where shard = `+n.parameter(1)+` and due <= `+n.parameter(2)+` order by due, id limit `+n.parameter(3)+` `+n.skip,
			[]any{int64(shard), by.UnixMilli(), int64(limit)})
		if err != nil || len(heads) == 0 {
			return err
		}
		return n.putOff(ctx, db, heads, until)
	})
	if err != nil {
		return nil, err
	}
	return heads, nil
}

// putOff makes heads due later, in the rows and in the slice.
func (n tables) putOff(ctx context.Context, db driver.SQL, heads []driver.Head, until time.Time) error {
	v := values{dialect: n.dialect}
	v.args = append(v.args, until.UnixMilli())
	for i := range heads {
		v.row("", heads[i].Transaction)
		heads[i].Due, heads[i].Claimed = time.UnixMilli(until.UnixMilli()).UTC(), true
	}
	_, err := db.Exec(ctx, `update `+n.heads+` set claimed = 1, due = `+n.parameter(1)+` where id in (`+v.text.String()+`)`, v.args...)
	return err
}

// Forget removes what ended long ago; see driver.Journal.
func (t *Table[T]) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	err = t.change(ctx, "forget", "", func(db driver.SQL, n tables) error {
		heads, err := n.query(ctx, db, `where ended < `+n.parameter(1)+` order by ended limit `+n.parameter(2)+` `+n.skip,
			[]any{before.UnixMicro(), int64(limit)})
		if err != nil {
			return err
		}
		v := values{dialect: n.dialect}
		for _, h := range heads {
			v.row("", h.Transaction)
		}
		for _, table := range []string{n.records, n.payloads, n.heads} {
			if v.rows == 0 {
				break
			}
			if _, err := db.Exec(ctx, `delete from `+table+` where id in (`+v.text.String()+`)`, v.args...); err != nil {
				return err
			}
		}
		forgotten = len(heads)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for more := true; more && err == nil; {
		err = t.change(ctx, "forget payloads", "", func(db driver.SQL, n tables) (err error) {
			more, err = n.forgetPayloads(ctx, db, before.UnixMicro())
			return err
		})
	}
	return forgotten, err
}

// settled stands for the time of a payload whose transaction exists: it goes with that, and
// Forget does not look at it again.
const settled = 1 << 62

// forgetPayloads removes the payloads without a transaction among the next that were kept
// before a time, and settles the others.
func (n tables) forgetPayloads(ctx context.Context, db driver.SQL, before int64) (more bool, err error) {
	const page = 200
	v := values{dialect: n.dialect, args: []any{before}}
	err = db.Query(ctx, `select id from `+n.payloads+` where kept < `+n.parameter(1)+` order by kept limit `+strconv.Itoa(page)+` `+n.skip, []any{before},
		func(scan func(...any) error) error {
			var id []byte
			err := scan(&id)
			v.row("", string(id))
			return err
		})
	if err != nil || v.rows == 0 {
		return false, err
	}
	chosen := ` where kept < ` + n.parameter(1) + ` and id in (` + v.text.String() + `)`
	_, err = db.Exec(ctx, n.nowait()+`delete from `+n.payloads+chosen+` and not exists (select 1 from `+n.heads+` where `+n.heads+`.id = `+n.payloads+`.id)`, v.args...)
	if err == nil {
		_, err = db.Exec(ctx, n.nowait()+`update `+n.payloads+` set kept = `+strconv.Itoa(settled)+chosen, v.args...)
	}
	return v.rows == page, err
}

// Unscheduled counts what is not due and has not ended; see driver.Journal. A
// constraint of the table keeps it at 0.
func (t *Table[T]) Unscheduled(ctx context.Context) (count int, err error) {
	err = t.read(ctx, "count unscheduled", "", driver.ReadCommitted, func(db driver.SQL, n tables) error {
		return db.Query(ctx, `select count(*) from `+n.heads+` where due is null and ended is null`, nil,
			func(scan func(...any) error) error { return scan(&count) })
	})
	return count, err
}
