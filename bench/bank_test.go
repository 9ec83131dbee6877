package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// balances returns the sums of the accounts of both sides, which begin with 0.
type balances = func(ctx context.Context) (north, south int64, err error)

// bank is the accounts of a store as participants of two-phase commit, sagas and TCC. Each
// protocol has its own accounts.
type bank struct {
	url string // of the journal
	// defined are the participants of two-phase commit, and join changes their accounts.
	defined   []twopc.Defined
	join      func(ctx context.Context, t *twopc.T, from, to int) error
	committed balances
	// step adds n to an account of a side, and undo adds n if the step was done. Both are calls
	// of a branch: each has one effect.
	step, undo func(ctx context.Context, side string, account int, n int64) error
	posted     balances // of sagas
	take, give tcc.Resource[tcc.Want, tcc.Want]
	confirmed  balances // of TCC
}

// sides returns the transfers by each protocol.
func (b bank) sides(tb testing.TB, clients, accounts int) []compare.Side {
	return []compare.Side{b.twoPhase(tb, clients, accounts), b.saga(tb, clients, accounts), b.tcc(tb, clients, accounts)}
}

// twoPhase runs the transfers by two-phase commit, and repeats them after a conflict.
func (b bank) twoPhase(tb testing.TB, clients, accounts int) compare.Side {
	engine := start(tb, b.runtime(tb), func(c *coordinator.Coordinator) (*twopc.Engine, error) { return twopc.New(c, nil, b.defined...) })
	return transfers("two-phase commit", clients, accounts, func(ctx context.Context, from, to int) error {
		for n := 1; ; n++ {
			err := engine.Run(ctx, fmt.Sprint("t", fresh.Add(1)), func(ctx context.Context, t *twopc.T) error { return b.join(ctx, t, from, to) })
			if interlock.Kind(err) != interlock.Retryable || !conflicts.Wait(ctx, n) {
				return err
			}
		}
	}, b.committed)
}

// participate sets the participants of two-phase commit, of which the first is called first.
func participate[B any](b *bank, north, south driver.Preparer[B], add func(ctx context.Context, b B, side string, account int, n int64) error) {
	atNorth, atSouth := twopc.Define("north", north), twopc.Define("south", south)
	b.defined = []twopc.Defined{atNorth, atSouth}
	b.join = func(ctx context.Context, t *twopc.T, from, to int) error {
		for _, s := range []struct {
			at      twopc.Definition[B]
			side    string
			account int
			n       int64
		}{{atNorth, "north", from, -1}, {atSouth, "south", to, 1}} {
			branch, err := s.at.Join(ctx, t)
			if err == nil {
				err = add(ctx, branch, s.side, s.account, s.n)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// transfer is the input of a saga.
type transfer struct{ From, To int }

// saga moves money by two steps, each in a transaction of its own. The second is the pivot.
func (b bank) saga(tb testing.TB, clients, accounts int) compare.Side {
	d := saga.Define("transfer",
		saga.Step("withdraw", func(ctx context.Context, t transfer) (int, error) { return 0, b.step(ctx, "north", t.From, -1) }).
			Undo("refund", func(ctx context.Context, t transfer, _ *int) error { return b.undo(ctx, "north", t.From, 1) }),
		saga.Step("deposit", func(ctx context.Context, t transfer) (int, error) { return 0, b.step(ctx, "south", t.To, 1) }).Pivot())
	engine := engineOf(tb, b.runtime(tb), nil, d)
	return transfers("saga", clients, accounts, func(ctx context.Context, from, to int) error {
		return succeed(ctx, engine, d, transfer{from, to})
	}, b.posted)
}

// runtime returns a runtime with a journal of its own.
func (b bank) runtime(tb testing.TB) *txn.Runtime {
	return openRuntime(tb, b.url, &txn.Options{Journal: fmt.Sprint("bank", fresh.Add(1))})
}

// tcc moves money by two holds. Run returns when the decision is durable.
func (b bank) tcc(tb testing.TB, clients, accounts int) compare.Side {
	north, south := tcc.Define("north", b.take), tcc.Define("south", b.give)
	o := &tcc.Options{Hooks: &observe.TCC{Tried: func(observe.TCCTried) {}}} // conflicts are expected
	engine := start(tb, b.runtime(tb), func(c *coordinator.Coordinator) (*tcc.Engine, error) { return tcc.New(c, o, north, south) })
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

// sqlBank keeps accounts in tables. update is a format of the statement that changes one, by the
// name of a table. open opens a participant of two-phase commit.
func sqlBank[B, T any](tb testing.TB, url string, db driver.BeginnerAt[T], accounts int, update string, open func(name string) (driver.Preparer[B], error),
	inBranch func(ctx context.Context, b B, query string, args ...any) error, inTx func(ctx context.Context, tx T, query string, args ...any) error) bank {
	b := bank{url: url}
	table, committed := sqlAccounts(tb, db, accounts)
	north, err := open(table + "n")
	ok(tb, err)
	south, err := open(table + "s")
	ok(tb, err)
	add := fmt.Sprintf(update, table)
	participate(&b, north, south, func(ctx context.Context, b B, side string, account int, n int64) error {
		return inBranch(ctx, b, add, n, side, account)
	})
	b.committed = committed
	table, b.posted = sqlAccounts(tb, db, accounts)
	update = fmt.Sprintf(update, table)
	calls, held := barrier.Table{Name: table + "calls"}, tcc.Table{Name: table + "held"}
	ok(tb, driver.Create(tb.Context(), db, calls, held))
	b.step = func(ctx context.Context, side string, account int, n int64) error {
		_, err := barrier.Do(ctx, db, calls, account, func(ctx context.Context, tx T) (int, error) {
			return 0, inTx(ctx, tx, update, n, side, account)
		})
		return err
	}
	b.undo = func(ctx context.Context, side string, account int, n int64) error {
		return barrier.Undo(ctx, db, calls, func(ctx context.Context, tx T, _ *int) error { return inTx(ctx, tx, update, n, side, account) })
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
			*map[string]*int64{"north": &north, "south": &south}[side] += l.Balance() - credit
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

// TestKeyedBank repeats each call, and sends some in the wrong order: each has one effect.
func TestKeyedBank(t *testing.T) {
	b := keyedBank("", 1, memory.NewKeyValues(), memory.NewKeyValues())
	w := tcc.Want{Item: item("north", 0), N: 1}
	step := func(ctx context.Context) error { return b.step(ctx, "north", 0, -1) }
	undo := func(ctx context.Context) error { return b.undo(ctx, "north", 0, 1) }
	try := func(ctx context.Context) error { _, err := b.take.Try(ctx, w, time.Time{}); return err }
	confirm := func(ctx context.Context) error { return b.take.Confirm(ctx, w, w) }
	cancel := func(ctx context.Context) error { return b.take.Cancel(ctx, w, nil) }
	type calls []func(context.Context) error
	for n, c := range []struct {
		accepted calls
		refused  func(context.Context) error
	}{
		{calls{step}, nil}, {calls{step, undo}, step}, {calls{undo}, step},
		{calls{try, confirm}, cancel}, {calls{try, cancel}, confirm}, {calls{cancel}, try}, {nil, confirm},
	} {
		ctx := branch.With(t.Context(), branch.Call{Transaction: "t", Branch: fmt.Sprint(n)})
		for _, call := range c.accepted {
			ok(t, errors.Join(call(ctx), call(ctx)))
		}
		if c.refused != nil && c.refused(ctx) == nil {
			t.Errorf("the last call of case %d was accepted", n)
		}
	}
	for _, sums := range []balances{b.posted, b.confirmed} { // one step, and one confirmed hold
		if north, south, err := sums(t.Context()); err != nil || north != -1 || south != 0 {
			t.Error(north, south, err)
		}
	}
}
