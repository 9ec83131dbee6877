package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// rows are the accounts of one database, changed in transactions of type T.
type rows[T any] struct {
	url string // of the journal
	db  driver.BeginnerAt[T]
	add func(ctx context.Context, tx T, side string, account int, n int64) error
	sum func(ctx context.Context) (int64, error) // 0
}

// sides returns the transfers by sagas and by TCC.
func (r rows[T]) sides(tb testing.TB, clients, accounts int) []compare.Side {
	return []compare.Side{r.saga(tb, clients, accounts), r.tcc(tb, clients, accounts)}
}

// transfer is the input of a saga.
type transfer struct{ From, To int }

// saga moves money by two steps, each in a transaction of its own. The second is the pivot.
func (r rows[T]) saga(tb testing.TB, clients, accounts int) compare.Side {
	calls := barrier.Table{Name: fmt.Sprint("calls", fresh.Add(1))}
	ok(tb, driver.Create(tb.Context(), r.db, calls))
	step := func(side string, n int64, account func(transfer) int) func(context.Context, transfer) (int, error) {
		return func(ctx context.Context, in transfer) (int, error) {
			return barrier.Do(ctx, r.db, calls, in, func(ctx context.Context, tx T) (int, error) {
				return 0, r.add(ctx, tx, side, account(in), n)
			})
		}
	}
	refund := func(ctx context.Context, in transfer, _ *int) error {
		return barrier.Undo(ctx, r.db, calls, func(ctx context.Context, tx T, _ *int) error {
			return r.add(ctx, tx, "north", in.From, 1)
		})
	}
	d := saga.Define("transfer",
		saga.Step("withdraw", step("north", -1, func(t transfer) int { return t.From })).Undo("refund", refund),
		saga.Step("deposit", step("south", 1, func(t transfer) int { return t.To })).Pivot())
	engine := startRuntime(tb, r.url, &txn.Options{Journal: fmt.Sprint("bank", fresh.Add(1))}, d)
	return transfers("saga", clients, accounts, func(ctx context.Context, from, to int) error {
		o, err := d.Do(ctx, engine, fmt.Sprint("s", fresh.Add(1)), transfer{from, to})
		if err == nil && o.State != saga.Succeeded {
			err = fmt.Errorf("it ended as %v", o.State)
		}
		return err
	}, r.sum)
}

// credit is what each account of TCC has at first: its tries are refused below 0.
const credit = 1 << 40

// tcc moves money by two holds. Run returns when the decision is durable.
func (r rows[T]) tcc(tb testing.TB, clients, accounts int) compare.Side {
	table := tcc.Table{Name: fmt.Sprint("held", fresh.Add(1))}
	ok(tb, driver.Create(tb.Context(), r.db, table))
	each := func(ctx context.Context, do func(db driver.SQL, item string) error) error {
		tx, err := r.db.Begin(ctx)
		if err != nil {
			return err
		}
		for n := 0; n < accounts && err == nil; n++ {
			err = errors.Join(do(tx, fmt.Sprint("north/", n)), do(tx, fmt.Sprint("south/", n)))
		}
		if err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		return tx.Commit(ctx)
	}
	ok(tb, each(tb.Context(), func(db driver.SQL, item string) error { return table.Set(tb.Context(), db, item, credit) }))
	holds := tcc.Holds[T]{DB: r.db, Table: table}
	north, south := tcc.Define("north", holds.Take()), tcc.Define("south", holds.Give())
	rt, err := txn.Open(tb.Context(), r.url, &txn.Options{Journal: fmt.Sprint("bank", fresh.Add(1))})
	ok(tb, err)
	closeAfter(tb, rt.Close)
	engine, err := tcc.New(rt.Coordinator(), nil, north, south)
	ok(tb, err)
	ok(tb, rt.Start(tb.Context()))
	move := func(ctx context.Context, from, to int) error {
		_, err := engine.Run(ctx, "transfer", fmt.Sprint("t", fresh.Add(1)),
			north.Try(tcc.Want{Item: fmt.Sprint("north/", from), N: 1}), south.Try(tcc.Want{Item: fmt.Sprint("south/", to), N: 1}))
		return err
	}
	return transfers("TCC", clients, accounts, move, func(ctx context.Context) (sum int64, err error) {
		err = each(ctx, func(db driver.SQL, item string) error {
			l, err := table.Show(ctx, db, item)
			sum += l.Balance() - credit
			return err
		})
		return sum, err
	})
}
