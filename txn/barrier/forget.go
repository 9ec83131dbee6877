package barrier

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// rowSpread is driver.BarrierSpread in milliseconds.
var rowSpread = driver.BarrierSpread.Milliseconds()

// removeBatch is the number of rows that one transaction deletes.
const removeBatch = 500

// Forget raises the low-water mark to a time, in whole milliseconds, and then deletes
// the rows whose first call told a begin more than driver.BarrierSpread before it, limit
// at most; 0 means 10000. It returns how many: call it again while that is the limit. The
// mark is in force before the first row goes: a call from below it is
// refused with [ErrForgotten], and no call that had looked at an older mark is still at
// work. Deletions are transactions of their own, of some hundred rows each.
//
// All transactions that began before the mark must have ended, and nobody may ask for
// their outcome: it is the coordinator that knows, by journal.Journal.LowWater, or
// [ForgetExcept] for some that have not. A mark is never lowered. One that is ahead of the database's clock is a Bug, and changes
// nothing.
//
// Calls of one transaction may tell begins that differ: clocks do, and the tries of a TCC
// transaction that are made again before it is decided have another. The mark lies a
// margin before the begin of anything unfinished, which covers that if the margin is the
// longer: no call of an unfinished transaction lies below the mark, and no row of one is
// deleted. Of one that has ended, a late call may tell a begin above the mark though its
// row's is below. For its sake rows stay driver.BarrierSpread longer: no two begins of a
// transaction may lie further apart.
//
// Raising a mark waits for the transactions that calls are at work in. On PostgreSQL
// it keeps nobody waiting, and is waited for until ctx ends. On MariaDB calls wait
// behind it: it gives up after a second, which is a Retryable error, and an
// interlock.ErrHeld.
func Forget[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, mark time.Time, limit int) (forgotten int, err error) {
	return ForgetExcept(ctx, db, t, mark, nil, limit)
}

// ForgetExcept is [Forget] that spares some transactions: their rows stay, and their
// calls are let in, though they began before the mark. It takes what
// journal.Journal.Mark returns.
//
// Each unfinished transaction that began before the mark, or less than the margin after
// it, must be among them, at this mark and at every later one until it has ended. Each
// call reads the list: there are at most 1000. A mark that is not above the one in force
// changes nothing, the exceptions neither.
func ForgetExcept[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, mark time.Time, except []string, limit int) (forgotten int, err error) {
	const op = "forget branches"
	switch {
	case db == nil:
		return 0, failure.Bug(op, t.Name, "there is no database")
	case limit < 0:
		return 0, failure.Bug(op, t.Name, "a limit of %d", limit)
	case len(except) > driver.MaxExcept:
		return 0, failure.Bug(op, t.Name, "%d transactions are excepted, at most %d can be", len(except), driver.MaxExcept)
	case limit == 0:
		limit = 10000
	}
	if err := raise(ctx, db, t, mark.UnixMilli(), joinExceptions(except)); err != nil {
		return 0, err
	}
	for forgotten < limit {
		batch := min(removeBatch, limit-forgotten)
		var n int64
		err := inOwnTransaction(ctx, db, t, op, func(l ledger) (err error) {
			n, err = l.remove(ctx, batch)
			return err
		})
		if err != nil {
			return forgotten, err
		}
		if forgotten += int(n); int(n) < batch {
			break
		}
	}
	return forgotten, nil
}

// exceptionKey returns a transaction as lists of exceptions contain it: none is part of another.
func exceptionKey(transaction string) string {
	return "," + hex.EncodeToString([]byte(transaction)) + ","
}

// joinExceptions returns a list of exceptions as the database stores it.
func joinExceptions(transactions []string) string {
	var list strings.Builder
	list.WriteByte(',')
	for _, id := range transactions {
		list.WriteString(hex.EncodeToString([]byte(id)) + ",")
	}
	return list.String()
}

// raise sets the mark and its exceptions.
func raise[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, mark int64, excepted string) error {
	const op = "raise low-water mark"
	err := inOwnTransaction(ctx, db, t, op, func(l ledger) error {
		_, err := l.Exec(ctx, raiseMark, mark, excepted, mark, mark)
		return err
	})
	if err != nil {
		return err
	}
	return inOwnTransaction(ctx, db, t, op, func(l ledger) error {
		if !l.Maria() { // this waits for the calls that share an older mark
			if _, err := l.Exec(ctx, `delete from {marks} where generation < (select max(generation) from {marks})`); err != nil {
				return err
			}
		}
		current, _, _, err := l.mark(ctx)
		if err == nil && current < mark {
			return failure.Bug(op, t.Name, "%s is ahead of the database's clock", time.UnixMilli(mark).UTC().Format(time.RFC3339))
		}
		return err
	})
}

// raiseMark changes nothing unless the mark is above the present one and not ahead of the database's clock.
const raiseMark = `{pg insert into {marks} (generation, mark, excepted) select max(generation) + 1, ?::bigint, ?::text from {marks}
having max(mark) < ?::bigint and ?::bigint <= {micros start} / 1000 on conflict do nothing}` +
	`{maria set statement innodb_lock_wait_timeout = 1 for
update {marks} set mark = ?, excepted = ? where only_row = 1 and mark < ? and ? <= {micros start} div 1000}`

// remove deletes up to limit rows that are the spread below the oldest mark, and none of a transaction
// that any mark excepts.
func (l ledger) remove(ctx context.Context, limit int) (int64, error) {
	return l.Delete(ctx, sqltable.Deletion{Table: "rows", Key: "transaction_id, branch, step", Order: "begun", Limit: limit,
		Where: `begun < (select min(mark) from {marks}) - ?
and not exists (select 1 from {marks} as m where
	position(concat(',', {pg encode(convert_to(transaction_id, 'UTF8'), 'hex')}{maria lower(hex(transaction_id))}, ',') in m.excepted) > 0)`,
		Args: []any{rowSpread}})
}

// inOwnTransaction runs one step in a transaction that reads committed data and locks no gaps.
func inOwnTransaction[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, op string, step func(l ledger) error) error {
	return transact.Do(ctx, transact.At(db, driver.ReadCommitted), t.Name, func(tx driver.Tx[T]) error {
		l, err := t.open(op, "", tx)
		if err == nil {
			err = l.Failed(t.bound(ctx, tx))
		}
		if err == nil {
			err = step(l)
		}
		return err
	})
}
