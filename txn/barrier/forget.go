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

// Forget raises the low-water mark to a time, in whole milliseconds. It then deletes at most limit
// rows whose first call began more than driver.BarrierSpread before the mark; 0 means 10000. It
// returns the number of deleted rows: if that is the limit, call it again. The mark is in force
// before the first row is deleted: calls below it are rejected with [ErrForgotten], and no call
// that has read an older mark is still running. Deletions are transactions of their own, of some
// hundred rows each.
//
// All transactions that began before the mark must have ended, and no client may ask for their
// outcome. The coordinator knows such a time: journal.Journal.LowWater. If some transactions have
// not ended, use [ForgetExcept]. A mark is never lowered. A mark ahead of the database's clock is
// a Bug, and changes nothing.
//
// Calls of one transaction may report different begins: clocks differ, and repeated tries of a TCC
// transaction before its decision have a later one. The mark lies a margin before the begin of
// every unfinished transaction. If the margin is longer than these differences, no call of an
// unfinished transaction is below the mark, and none of its rows is deleted. A late call of an
// ended transaction may report a begin above the mark although its row has one below it. So rows
// are kept for driver.BarrierSpread longer, which bounds the difference of two begins.
//
// Raising a mark waits for the transactions of running calls. On PostgreSQL no call waits for it,
// and it waits until ctx ends. On MariaDB later calls wait for it: it gives up after a second with
// a Retryable error that is an interlock.ErrHeld.
func Forget[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, mark time.Time, limit int) (forgotten int, err error) {
	return ForgetExcept(ctx, db, t, mark, nil, limit)
}

// ForgetExcept is [Forget] with exceptions: transactions whose rows are kept and whose calls are
// admitted although they began before the mark. journal.Journal.Mark returns both arguments.
//
// The exceptions must contain each unfinished transaction that began before the mark, or less than
// the margin after it. Every later mark must have it too, until it has ended. Every call reads the
// list, so it has at most driver.MaxExcept entries. A mark that is not above the one in force
// changes nothing, and neither do its exceptions.
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

// exceptionKey returns the entry of a transaction in a list of exceptions. No entry is part of another.
func exceptionKey(transaction string) string {
	return "," + hex.EncodeToString([]byte(transaction)) + ","
}

// joinExceptions returns the stored form of a list of exceptions.
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

// raiseMark changes nothing unless the mark is above the current one and not ahead of the database's clock.
const raiseMark = `{pg insert into {marks} (generation, mark, excepted) select max(generation) + 1, ?::bigint, ?::text from {marks}
having max(mark) < ?::bigint and ?::bigint <= {micros start} / 1000 on conflict do nothing}` +
	`{maria set statement innodb_lock_wait_timeout = 1 for
update {marks} set mark = ?, excepted = ? where only_row = 1 and mark < ? and ? <= {micros start} div 1000}`

// remove deletes up to limit rows that began driver.BarrierSpread before the oldest mark, except
// those of transactions that any mark excepts.
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
