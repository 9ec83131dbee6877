package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// balances returns the sums of the accounts of both sides, which begin with 0.
type balances = func(ctx context.Context) (north, south int64, err error)

// bank is the accounts of a store as participants of sagas and of TCC.
type bank struct {
	url string // of the journal
	// step adds n to an account of a side, and undo adds n if the step was done. Both are calls
	// of a branch: each has one effect.
	step, undo func(ctx context.Context, side string, account int, n int64) error
	posted     balances // of sagas
	take, give tcc.Resource[tcc.Want, tcc.Want]
	confirmed  balances // of TCC
}

// sides returns the transfers by TCC and by sagas.
func (b bank) sides(tb testing.TB, clients, accounts int) []compare.Side {
	return []compare.Side{b.saga(tb, clients, accounts), b.tcc(tb, clients, accounts)}
}

// transfer is the input of a saga.
type transfer struct{ From, To int }

// saga moves money by two steps, each in a transaction of its own. The second is the pivot.
func (b bank) saga(tb testing.TB, clients, accounts int) compare.Side {
	d := saga.Define("transfer",
		saga.Step("withdraw", func(ctx context.Context, t transfer) (int, error) { return 0, b.step(ctx, "north", t.From, -1) }).
			Undo("refund", func(ctx context.Context, t transfer, _ *int) error { return b.undo(ctx, "north", t.From, 1) }),
		saga.Step("deposit", func(ctx context.Context, t transfer) (int, error) { return 0, b.step(ctx, "south", t.To, 1) }).Pivot())
	engine := startRuntime(tb, b.url, ownJournal(), d)
	return transfers("saga", clients, accounts, func(ctx context.Context, from, to int) error {
		return succeed(ctx, engine, d, transfer{from, to})
	}, b.posted)
}

func ownJournal() *txn.Options { return &txn.Options{Journal: fmt.Sprint("bank", fresh.Add(1))} }

// tcc moves money by two holds. Run returns when the decision is durable.
func (b bank) tcc(tb testing.TB, clients, accounts int) compare.Side {
	north, south := tcc.Define("north", b.take), tcc.Define("south", b.give)
	var engine *tcc.Engine
	start(tb, openRuntime(tb, b.url, ownJournal()), func(c *coordinator.Coordinator) (err error) {
		engine, err = tcc.New(c, nil, north, south)
		return err
	})
	return transfers("TCC", clients, accounts, func(ctx context.Context, from, to int) error {
		_, err := engine.Run(ctx, "transfer", fmt.Sprint("t", fresh.Add(1)),
			north.Try(tcc.Want{Item: item("north", from), N: 1}), south.Try(tcc.Want{Item: item("south", to), N: 1}))
		return err
	}, b.confirmed)
}

func item(side string, account int) string { return fmt.Sprint(side, "/", account) }

// credit is what each account of TCC may take: its tries are refused below.
const credit = 1 << 40

// sqlAccounts creates a table of accounts.
func sqlAccounts[T any](tb testing.TB, db driver.BeginnerAt[T], accounts int) (table string, sums balances) {
	table = fmt.Sprint("account", fresh.Add(1))
	var rows []string
	for account := range accounts {
		rows = append(rows, fmt.Sprintf(`('north', %d, 0), ('south', %[1]d, 0)`, account))
	}
	ok(tb, transact.Do(tb.Context(), db.Begin, table, func(tx driver.Tx[T]) error {
		_, err := tx.Exec(tb.Context(), `create table `+table+` (side varchar(5), id int, balance bigint not null, primary key (side, id))`)
		if err == nil {
			_, err = tx.Exec(tb.Context(), `insert into `+table+` values `+strings.Join(rows, `, `))
		}
		return err
	}))
	return table, func(ctx context.Context) (north, south int64, err error) {
		err = transact.Do(ctx, db.Begin, table, func(tx driver.Tx[T]) error {
			return tx.Query(ctx, `select sum(case side when 'north' then balance else 0 end), sum(case side when 'south' then balance else 0 end) from `+table, nil,
				func(scan func(...any) error) error { return scan(&north, &south) })
		})
		return north, south, err
	}
}

// sqlBank keeps accounts in tables. add changes one of them.
func sqlBank[T any](tb testing.TB, url string, db driver.BeginnerAt[T], accounts int,
	add func(ctx context.Context, tx T, table, side string, account int, n int64) error) bank {
	b := bank{url: url}
	table, posted := sqlAccounts(tb, db, accounts)
	calls, held := barrier.Table{Name: table + "calls"}, tcc.Table{Name: table + "held"}
	ok(tb, driver.Create(tb.Context(), db, calls, held))
	b.posted = posted
	b.step = func(ctx context.Context, side string, account int, n int64) error {
		_, err := barrier.Do(ctx, db, calls, account, func(ctx context.Context, tx T) (int, error) {
			return 0, add(ctx, tx, table, side, account, n)
		})
		return err
	}
	b.undo = func(ctx context.Context, side string, account int, n int64) error {
		return barrier.Undo(ctx, db, calls, func(ctx context.Context, tx T, _ *int) error { return add(ctx, tx, table, side, account, n) })
	}
	each := func(ctx context.Context, do func(db driver.SQL, side, item string) error) error {
		return transact.Do(ctx, db.Begin, table, func(tx driver.Tx[T]) (err error) {
			for n := 0; n < accounts && err == nil; n++ {
				err = errors.Join(do(tx, "north", item("north", n)), do(tx, "south", item("south", n)))
			}
			return err
		})
	}
	ok(tb, each(tb.Context(), func(db driver.SQL, _, item string) error { return held.Set(tb.Context(), db, item, credit) }))
	b.confirmed = func(ctx context.Context) (north, south int64, err error) {
		err = each(ctx, func(db driver.SQL, side, item string) error {
			l, err := held.Show(ctx, db, item)
			if side == "north" {
				north += l.Balance() - credit
			} else {
				south += l.Balance() - credit
			}
			return err
		})
		return north, south, err
	}
	holds := tcc.Holds[T]{DB: db, Table: held}
	b.take, b.give = holds.Take(), holds.Give()
	return b
}

// keyedBank keeps accounts in key-value stores: one for sagas, and one for TCC.
func keyedBank(url string, accounts int, ofSagas, ofTCC driver.KeyValues) bank {
	at := keyedAccounts{ofSagas}
	add := func(phase driver.BarrierPhase) func(ctx context.Context, side string, account int, n int64) error {
		return func(ctx context.Context, side string, account int, n int64) error {
			return at.call(ctx, phase, item(side, account), func(k *keyedAccount) bool { k.Posted += n; return true })
		}
	}
	return bank{url: url, step: add(driver.BarrierFirst), undo: add(driver.BarrierUndo), posted: at.sums(accounts),
		take: keyedHolds{keyedAccounts{ofTCC}, -1}, give: keyedHolds{keyedAccounts{ofTCC}, 1}, confirmed: keyedAccounts{ofTCC}.sums(accounts)}
}

// keyedAccounts writes the state of a branch in one atomic step with the account that it changes.
type keyedAccounts struct{ store driver.KeyValues }

// keyedAccount is the value of a key. Held is the sum of what tries take, below zero, or announce.
type keyedAccount struct{ Posted, Held int64 }

// call answers the call of a branch: change makes its effect, unless an earlier call has, or
// refuses it.
func (a keyedAccounts) call(ctx context.Context, phase driver.BarrierPhase, name string, change func(*keyedAccount) bool) error {
	c := branch.From(ctx)
	record := fmt.Sprintf("branch/%s/%s/%s", c.Transaction, c.Branch, c.Step)
	for n := 1; ; n++ {
		got, err := a.store.Get(ctx, record, name)
		if err != nil {
			return err
		}
		was := driver.BarrierState(got[0].Value)
		move := was.Meet(phase)
		swaps := []driver.Swap{{Key: record, Revision: got[0].Revision, Value: []byte(move.Next)}}
		if move.Outcome == driver.BarrierRun {
			k := readAccount(got[1])
			if move.Outcome = driver.BarrierIsDone; change(&k) {
				text, _ := json.Marshal(k) // of two numbers
				swaps = append(swaps, driver.Swap{Key: name, Revision: got[1].Revision, Value: text})
			} else {
				move = driver.BarrierMove{Outcome: driver.BarrierSaysNo, Next: was.Refuse()}
				swaps[0].Value = []byte(move.Next)
			}
		}
		revision := int64(1)
		if move.Next != was {
			revision, err = a.store.Swap(ctx, swaps...)
		}
		switch {
		case err != nil:
			return err
		case revision == 0 && conflicts.Wait(ctx, n):
			continue
		case revision == 0:
			return context.Cause(ctx)
		case move.Outcome != driver.BarrierIsDone:
			return branch.Fail(fmt.Errorf("%s of %s at %s: %s", phase, record, name, move.Outcome))
		}
		return nil
	}
}

// readAccount returns an account; one that was never changed is empty.
func readAccount(kv driver.KeyValue) (k keyedAccount) {
	if err := json.Unmarshal(kv.Value, &k); err != nil && len(kv.Value) > 0 {
		panic(fmt.Sprintf("%s has the value %q", kv.Key, kv.Value))
	}
	return k
}

func (a keyedAccounts) sums(accounts int) balances {
	return func(ctx context.Context) (north, south int64, err error) {
		for side, sum := range map[string]*int64{"north": &north, "south": &south} {
			found, scanned := a.store.Scan(ctx, side+"/", side+"0", accounts)
			err = errors.Join(err, scanned)
			for _, kv := range found {
				*sum += readAccount(kv).Posted
			}
		}
		return north, south, err
	}
}

// keyedHolds holds units of accounts: it takes them if sign is -1, and gives them if it is 1. As
// no process of the benchmark dies, no hold asks for its decision.
type keyedHolds struct {
	keyedAccounts
	sign int64
}

func (h keyedHolds) Try(ctx context.Context, w tcc.Want, _ time.Time) (tcc.Want, error) {
	return w, h.call(ctx, driver.BarrierFirst, w.Item, func(k *keyedAccount) bool {
		k.Held += h.sign * w.N
		return credit+k.Posted+min(k.Held, 0) >= 0
	})
}

func (h keyedHolds) Confirm(ctx context.Context, w, _ tcc.Want) error {
	return h.call(ctx, driver.BarrierConfirm, w.Item, func(k *keyedAccount) bool {
		k.Held, k.Posted = k.Held-h.sign*w.N, k.Posted+h.sign*w.N
		return true
	})
}

func (h keyedHolds) Cancel(ctx context.Context, w tcc.Want, _ *tcc.Want) error {
	return h.call(ctx, driver.BarrierUndo, w.Item, func(k *keyedAccount) bool { k.Held -= h.sign * w.N; return true })
}
