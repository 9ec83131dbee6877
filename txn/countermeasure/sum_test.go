package countermeasure_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

func (w world) add(s countermeasure.Sum, key string, delta int64) error {
	return w.in(func(ctx context.Context, db driver.SQL) error { return s.Add(ctx, db, key, delta) })
}

// testSumKeepsItsBounds: only changes beyond the bounds are refused, up to the limits of the type.
func testSumKeepsItsBounds(w world) {
	numbers := []int64{math.MinInt64, math.MinInt64 + 1, -7, -1, 0, 1, 7, math.MaxInt64 - 1, math.MaxInt64}
	bounds := [][2]int64{{0, 0}, {math.MinInt64, 0}, {-7, 7}, {-7, -2}, {1, math.MaxInt64}, {math.MaxInt64, math.MaxInt64}}
	for _, b := range bounds {
		s := w.sum
		s.Min, s.Max = b[0], b[1]
		high := s.Max
		if high == 0 {
			high = math.MaxInt64
		}
		var wrong []string
		ok(w, w.in(func(ctx context.Context, db driver.SQL) error {
			for _, value := range numbers {
				for _, delta := range numbers {
					if delta == 0 || delta == math.MinInt64 {
						continue
					}
					if err := exec(fmt.Sprintf(`update account set balance = %d where id = 'a'`, value))(ctx, db); err != nil {
						return err
					}
					err := s.Add(ctx, db, "a", delta)
					sum := new(big.Int).Add(big.NewInt(value), big.NewInt(delta))
					allowed := sum.Cmp(big.NewInt(high)) <= 0 && delta > 0 || sum.Cmp(big.NewInt(s.Min)) >= 0 && delta < 0
					if allowed && !sum.IsInt64() {
						return fmt.Errorf("%d + %d is allowed", value, delta)
					}
					want := value
					if allowed {
						want = sum.Int64()
					} else if e := wants[*countermeasure.BoundError](w, err, interlock.Definite); *e != (countermeasure.BoundError{
						Table: "account", Key: "a", Value: value, Delta: delta, Min: s.Min, Max: high}) {
						wrong = append(wrong, err.Error())
					}
					got, look := databases.Value[int64](ctx, db, `select balance from account where id = 'a'`)
					if look != nil {
						return look
					}
					if got != want || allowed && err != nil {
						wrong = append(wrong, fmt.Sprintf("%d + %d: %d, %v", value, delta, got, err))
					}
				}
			}
			return nil
		}))
		if len(wrong) > 0 {
			w.Errorf("bounds of %v: %s", b, strings.Join(wrong, "; "))
		}
	}
}

// testBadSums: invalid arguments return a clear error, and add nothing.
func testBadSums(w world) {
	for name, err := range map[string]error{
		"zero":          w.add(w.sum, "a", 0),
		"no reversal":   w.add(w.sum, "a", math.MinInt64),
		"no key":        w.add(w.sum, "", 1),
		"crossed":       w.add(countermeasure.Sum{Table: "account", Key: "id", Column: "balance", Min: 2, Max: 1}, "a", 1),
		"no names":      w.add(countermeasure.Sum{}, "a", 1),
		"no database":   w.sum.Add(w.Context(), nil, "a", 1),
		"not unique":    w.add(countermeasure.Sum{Table: "item", Key: "name", Column: "price"}, "chair", 1),
		"one operation": w.applied("a", branch.Call{Transaction: "t", Branch: "b", Operation: branch.Confirm}, 1),
	} {
		if name == "not unique" {
			ok(w, err) // there is only one
			w.Exec(w.T, `insert into item values (2, 10, 'chair', '')`)
			err = w.add(countermeasure.Sum{Table: "item", Key: "name", Column: "price"}, "chair", 1)
			txntest.Equal(w, "price", w.price(), 11)
		}
		if err == nil || interlock.Kind(err) != interlock.Bug {
			w.Errorf("%s: %v", name, err)
		}
	}
	for _, key := range []string{"nobody", "A", "a ", "' or true --"} {
		if e := wants[*countermeasure.NoRowError](w, w.add(w.sum, key, 1), interlock.Definite); e.Key != key {
			w.Errorf("%+v", e)
		}
	}
	txntest.Equal(w, "balance", w.balance("a"), 100)
	err := w.add(countermeasure.Sum{Table: "nowhere", Key: "id", Column: "balance"}, "a", 1)
	wantKind(w, err, interlock.Definite, nil)
}

// applied calls Sum.Apply in a separate transaction.
func (w world) applied(key string, c branch.Call, delta int64) error {
	return w.in(func(ctx context.Context, db driver.SQL) error {
		_, err := w.sum.Apply(ctx, db, w.file, c, key, delta)
		return err
	})
}

// testCallsInAnyOrder: up to five calls of a step and its undo arrive in any order. An undone step
// has no effect, any other one effect. Without a version file, an undo that arrives first leaves the
// step's effect.
func testCallsInAnyOrder(w world) {
	naive, run := 0, 0
	var each func(calls string)
	each = func(calls string) {
		if len(calls) > 0 {
			run++
			before := w.balance("a")
			want, plain := int64(7), int64(0)
			if strings.Contains(calls, "U") {
				want = 0
			}
			for i, letter := range calls {
				c := branch.Call{Transaction: fmt.Sprint("run/", run), Branch: "add 7", Operation: branch.Do, Attempt: i + 1}
				if letter == 'U' {
					c.Operation = branch.Undo
				}
				ok(w, w.applied("a", c, 7))
				// Once each; an undo without an effect does nothing.
				switch {
				case letter == 'D' && !strings.Contains(calls[:i], "D"):
					plain += 7
				case letter == 'U' && plain > 0:
					plain -= 7
				}
			}
			txntest.Equal(w, calls+": left", w.balance("a")-before, want)
			if plain != want {
				naive++
			}
		}
		if len(calls) < 5 {
			each(calls + "D")
			each(calls + "U")
		}
	}
	each("")
	if run != 62 || naive == 0 {
		w.Errorf("%d orders, %d of which go wrong without it", run, naive)
	}
}

// testRefusedCallIsNotLogged: a refused call that is rolled back is not logged. It can be repeated
// when there is room, and its undo finds nothing to undo.
func testRefusedCallIsNotLogged(w world) {
	take := branch.Call{Transaction: "t", Branch: "take", Operation: branch.Do}
	wants[*countermeasure.BoundError](w, w.applied("a", take, -150), interlock.Definite)
	ok(w, w.add(w.sum, "a", 50))
	ok(w, w.applied("a", take, -150))
	txntest.Equal(w, "balance", w.balance("a"), 0)
	wants[*countermeasure.ReusedError](w, w.applied("a", take, -149), interlock.Definite)
	undo := branch.Call{Transaction: "t2", Branch: "take", Operation: branch.Undo}
	other := undo
	other.Operation = branch.Do
	wants[*countermeasure.BoundError](w, w.applied("a", other, -1), interlock.Definite)
	ok(w, w.applied("a", undo, -1))
	ok(w, w.add(w.sum, "a", 10))
	ok(w, w.applied("a", other, -1)) // it arrives late, and is cancelled
	txntest.Equal(w, "balance", w.balance("a"), 10)
}

// testRefusedCallStaysSo: a step that was refused by a bound has no effect when it is repeated,
// although there is room by then: no saga would undo it.
func testRefusedCallStaysSo(w world) {
	take := branch.Call{Transaction: "t", Branch: "take", Operation: branch.Do}
	undo := take
	undo.Operation = branch.Undo
	ok(w, w.in(func(ctx context.Context, db driver.SQL) error {
		v, err := w.sum.Apply(ctx, db, w.file, take, "a", -150)
		if e := wants[*countermeasure.BoundError](w, err, interlock.Definite); v != countermeasure.Refused || e.Value != 100 || e.Again {
			w.Errorf("%v, %+v", v, e)
		}
		return nil
	}))
	ok(w, w.add(w.sum, "a", 50))
	for i, c := range []struct {
		call branch.Call
		want countermeasure.Verdict
	}{{take, countermeasure.Refused}, {undo, countermeasure.Repeated}, {take, countermeasure.Refused}} {
		ok(w, w.in(func(ctx context.Context, db driver.SQL) error {
			v, err := w.sum.Apply(ctx, db, w.file, c.call, "a", -150)
			if v != c.want {
				w.Errorf("call %d: %v, want %v", i, v, c.want)
			}
			if v != countermeasure.Refused {
				return err
			}
			if e := wants[*countermeasure.BoundError](w, err, interlock.Definite); !e.Again || e.Delta != -150 || !strings.Contains(e.Error(), "before") {
				w.Errorf("%+v", e)
			}
			return nil
		}))
	}
	txntest.Equal(w, "balance", w.balance("a"), 150)
	standing := func(ctx context.Context, db driver.SQL) error {
		all, err := w.file.Standing(ctx, db, "account/balance/a")
		if len(all) != 0 {
			w.Errorf("%+v stand", all)
		}
		return errors.Join(err, ignored[*countermeasure.ReusedError](second(w.sum.Apply(ctx, db, w.file, take, "a", -1))))
	}
	ok(w, w.in(standing))
	for what, id := range map[string]string{"not logged": "unheard of", "refused": countermeasure.OperationID(take)} {
		err := w.in(func(ctx context.Context, db driver.SQL) error { return w.file.Refuse(ctx, db, "account/balance/a", id) })
		if interlock.Kind(err) != interlock.Bug || err == nil {
			w.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// testRacingTransfers: many concurrent transfers, in two transactions each, repeat their calls and
// undo some of them. The sum of money stays the same, no balance is ever below zero, and the log
// matches the balances.
func testRacingTransfers(w world) {
	w.Exec(w.T, `alter table account add constraint solvent check (balance >= 0)`)
	const lanes, each = 5, 12
	var running sync.WaitGroup
	for lane := range lanes {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(lane)))
			for n := range each {
				w.transfer(random, fmt.Sprintf("%d/%d", lane, n))
			}
		})
	}
	running.Wait()
	a, b := w.balance("a"), w.balance("b")
	if a+b != 200 {
		w.Errorf("%d and %d", a, b)
	}
	logged := 0
	for account, want := range map[string]int64{"a": a, "b": b} {
		got := int64(100)
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
			standing, err := w.file.Standing(ctx, db, "account/balance/"+account)
			for _, o := range standing {
				delta, _ := strconv.ParseInt(string(o.Data), 10, 64)
				got += delta
			}
			logged += len(standing)
			return err
		})
		if got != want {
			w.Errorf("%s has %d, and by its log %d", account, want, got)
		}
	}
	if logged < lanes {
		w.Errorf("%d operations stand", logged)
	}
}

// transfer moves money from one account to the other, and at random back again.
func (w world) transfer(random *rand.Rand, id string) {
	from, to := "a", "b"
	if random.IntN(2) == 0 {
		from, to = to, from
	}
	amount := random.Int64N(80) + 1
	call := func(operation branch.Operation, account string, delta int64) (err error) {
		for done := 0; done <= random.IntN(2); {
			err = w.applied(account, branch.Call{Transaction: id, Branch: account, Operation: operation}, delta)
			if err == nil || interlock.Kind(err) == interlock.Definite {
				done++
			} else if interlock.Kind(err) != interlock.Retryable {
				w.Error(err)
				return err
			}
		}
		return err
	}
	var short *countermeasure.BoundError
	switch err := call(branch.Do, from, -amount); {
	case errors.As(err, &short):
		_ = call(branch.Undo, from, -amount) // its error does not matter
	case err != nil:
	case random.IntN(3) == 0:
		_ = call(branch.Undo, from, -amount)
	default:
		if err := call(branch.Do, to, amount); err != nil {
			w.Error(err)
		}
	}
}

// testEarlySnapshots: an early snapshot does not affect writes of differences and comparisons.
func testEarlySnapshots(w world) {
	if w.Dialect == driver.Postgres {
		return // it ends such a transaction by itself
	}
	early := w.Begun(w.T, driver.RepeatableRead)
	_, err := databases.Value[int64](w.Context(), early, `select balance from account where id = 'a'`)
	ok(w, err)
	call := branch.Call{Transaction: "other", Branch: "take", Operation: branch.Do}
	ok(w, w.applied("a", call, -90))
	short := wants[*countermeasure.BoundError](w, w.sum.Add(w.Context(), early, "a", -20), interlock.Definite)
	if short.Value != 10 {
		w.Errorf("%+v", short)
	}
	mine := branch.Call{Transaction: "mine", Branch: "take", Operation: branch.Do}
	_, err = w.sum.Apply(w.Context(), early, w.file, mine, "a", -10)
	ok(w, err)
	standing, err := w.file.Standing(w.Context(), early, "account/balance/a")
	if err != nil || len(standing) != 2 || string(standing[0].Data) != "-90" || string(standing[1].Data) != "-10" {
		w.Errorf("%v, %v", standing, err)
	}
	ok(w, early.Commit(w.Context()))
	txntest.Equal(w, "balance", w.balance("a"), 0)
}

// testRoomIsWaitedFor: a call that finds too little while another transaction adds waits, and is
// then done or refused by the new value.
func testRoomIsWaitedFor(w world) {
	for _, commit := range []bool{false, true} {
		first := w.Begun(w.T, driver.SessionIsolation)
		ok(w, w.sum.Add(w.Context(), first, "a", 100))
		second := testbed.Later(w, bound, func() error { return w.add(w.sum, "a", -150) })
		w.blocked("the second one")
		if commit {
			ok(w, first.Commit(w.Context()))
			ok(w, second())
			continue
		}
		ok(w, first.Rollback(w.Context()))
		if e := wants[*countermeasure.BoundError](w, second(), interlock.Definite); e.Value != 100 {
			w.Errorf("%+v", e)
		}
	}
	txntest.Equal(w, "balance", w.balance("a"), 50)
}
