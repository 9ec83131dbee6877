package countermeasure_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// seed is the seed of the random schedules.
const seed = 20260305

// without is the variant that has no countermeasure.
const without = "without"

// judged records a run, and checks it by a checker of package history.
func (w world) judged(check func(iter.Seq2[history.Event, error]) (history.Verdict, error), run func(h *history.Writer)) history.Verdict {
	w.Helper()
	var file bytes.Buffer
	h, err := history.NewWriter(&file, history.Header{Run: w.Name(), Seed: seed}, nil)
	ok(w, err)
	run(h)
	ok(w, h.Close())
	r, err := history.NewReader(&file)
	ok(w, err)
	v, err := check(r.Events())
	ok(w, err)
	return v
}

// tried runs an anomaly's sagas in a schedule that is known to show it, and then in random ones;
// found reports whether a run shows it. Without a countermeasure the anomaly must occur in the
// known schedule and in some others. It must not occur in all, so that its cause is the
// interleaving. With one it must never occur.
func (w world) tried(variant, known string, turns []int, found func(schedule string) bool) {
	w.Helper()
	broken := variant == without
	if got := found(known); got != broken {
		w.Errorf("%s, schedule %s: the anomaly is seen: %v", variant, known, got)
	}
	seen, all := 0, schedules(seed, turns...)
	all = all[:min(12, len(all))]
	for _, schedule := range all {
		if found(schedule) {
			seen++
		}
	}
	if broken != (seen > 0) || seen == len(all) {
		w.Errorf("%s: seen in %d of %d random schedules", variant, seen, len(all))
	}
}

// settles ends a call of a history by the outcome of its saga.
func settles(call history.Call) func(done bool) {
	return func(done bool) {
		if done {
			call.OK("")
		} else {
			call.Fail("undone")
		}
	}
}

// act is the function of a step.
type act = func(ctx context.Context, db driver.SQL) error

// all returns an act that calls acts one after the other, in one transaction.
func all(acts ...act) act {
	return func(ctx context.Context, db driver.SQL) error {
		for _, a := range acts {
			if err := a(ctx, db); err != nil {
				return err
			}
		}
		return nil
	}
}

// The acts of the sagas in these tests.

func into(seen *int64, query string) act {
	return func(ctx context.Context, db driver.SQL) (err error) {
		*seen, err = databases.Value[int64](ctx, db, query)
		return err
	}
}

func (w world) acquires(resource, owner string) act {
	return func(ctx context.Context, db driver.SQL) error {
		return w.locks.Acquire(ctx, db, countermeasure.Intent{Resource: resource, Owner: owner})
	}
}

func (w world) releases(resource, owner string) act {
	return func(ctx context.Context, db driver.SQL) error {
		_, err := w.locks.Release(ctx, db, resource, owner)
		return err
	}
}

// versioned has the version column of accounts.
var versioned = countermeasure.Reread{Row: version.Column{Table: "account", Key: "id", Version: "version"}}

// unchanged undoes the saga if the account was written since it was seen.
func unchanged(account string, seen *int64) act {
	return func(ctx context.Context, db driver.SQL) error {
		return refused[*countermeasure.ChangedError](versioned.Unchanged(ctx, db, account, *seen))
	}
}

// reprice returns the steps of a saga that sets a price, calls leave, and undoes the price if that
// refuses; and those of one that reads the price.
func (w world) reprice(variant, id string, from, to int64, leave act, seen *int64) (write, read []step) {
	set := func(price int64) act { return exec(fmt.Sprintf(`update item set price = %d where id = 1`, price)) }
	look := into(seen, `select price from item where id = 1`)
	switch variant {
	case "semantic lock":
		vacant := func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "item/1") }
		acquire, release := w.acquires("item/1", id), w.releases("item/1", id)
		return []step{{all(acquire, set(to)), all(set(from), release)}, {do: leave}, {do: release}}, []step{{do: all(vacant, look)}}
	case "staging":
		stage := func(ctx context.Context, db driver.SQL) error { return w.stage.Stage(ctx, db, id, 1, to, "chair") }
		drop := func(ctx context.Context, db driver.SQL) error { _, err := w.stage.Drop(ctx, db, id); return err }
		publish := func(ctx context.Context, db driver.SQL) error { _, err := w.stage.Publish(ctx, db, id); return err }
		return []step{{stage, drop}, {do: leave}, {do: publish}}, []step{{do: look}}
	}
	return []step{{set(to), set(from)}, {do: leave}}, []step{{do: look}}
}

// testSagasReadNothingDirty: one saga sets a price, and undoes that or not; another one reads it.
// The writer of each value that was read is checked.
func testSagasReadNothingDirty(w world) {
	granted := func(context.Context, driver.SQL) error { return nil }
	for _, variant := range []string{without, "semantic lock", "staging"} {
		run, read := 0, map[int64]bool{}
		w.tried(variant, "ABAA", []int{3, 1}, func(schedule string) (dirty bool) {
			for _, leave := range []act{oops, granted} {
				run++
				id, from := fmt.Sprintf("%s %d", variant, run), w.price()
				to, seen := from+1, int64(0)
				v := w.judged(history.CheckReads, func(h *history.Writer) {
					h.Record(history.Event{Kind: history.State, Op: history.OpValue, Key: "price", Value: strconv.FormatInt(from, 10)})
					writes := h.Invoke(history.Event{Lane: "A", Op: history.OpWrite, Key: "price", Value: strconv.FormatInt(to, 10)})
					reads := h.Invoke(history.Event{Lane: "B", Op: history.OpRead, Key: "price"})
					write, look := w.reprice(variant, id, from, to, leave, &seen)
					w.interleave(schedule, play{id, write, settles(writes)},
						play{"reader", look, func(bool) { reads.OK(strconv.FormatInt(seen, 10)) }})
				})
				read[seen-from], dirty = true, dirty || !v.OK()
			}
			return dirty
		})
		if !read[0] || !read[1] || w.price() <= 10 {
			w.Errorf("%s: of the prices before and after, read were %v", variant, read)
		}
	}
}

// testOrderOfSteps: a saga credits an account and is then refused, while another one spends the
// balance. In the order that CheckOrder rejects, the second one spends money that the undo cannot
// recover; in the other order it does not.
func testOrderOfSteps(w world) {
	for i, c := range []struct {
		order  []countermeasure.Step
		misfit int
	}{
		{[]countermeasure.Step{{Name: "credit", Increases: []string{"balance"}}, {Name: "check", Pivot: true}}, 1},
		{[]countermeasure.Step{{Name: "check", Pivot: true}, {Name: "credit", Increases: []string{"balance"}}}, 0},
	} {
		found, err := countermeasure.CheckOrder(c.order...)
		if err != nil || len(found) != c.misfit {
			w.Errorf("%v, %v", found, err)
		}
		w.Exec(w.T, `update account set balance = 100 where id = 'a'`)
		stuck := false
		credit := func(operation branch.Operation) act {
			return func(ctx context.Context, db driver.SQL) error {
				call := branch.Call{Transaction: fmt.Sprint("order ", i), Branch: "credit", Operation: operation}
				_, err := w.sum.Apply(ctx, db, w.file, call, "a", 50)
				return refused[*countermeasure.BoundError](err)
			}
		}
		undo := func(ctx context.Context, db driver.SQL) error {
			err := credit(branch.Undo)(ctx, db)
			class, _ := branch.ClassOf(err)
			if stuck = class == branch.ClassFail; stuck {
				return nil // a dead letter
			}
			return err
		}
		steps := map[string]step{"credit": {credit(branch.Do), undo}, "check": {do: oops}}
		var saga []step
		for _, s := range c.order {
			saga = append(saga, steps[s.Name])
		}
		done := w.interleave("ABAA", play{id: "crediting", steps: saga}, play{id: "spending", steps: []step{{
			do: func(ctx context.Context, db driver.SQL) error {
				return refused[*countermeasure.BoundError](w.sum.Add(ctx, db, "a", -140))
			}}}})
		if spent := done[1]; spent != (c.misfit > 0) || stuck != spent {
			w.Errorf("%v: spent %v, stuck %v", c.order, spent, stuck)
		}
	}
}

// purchase returns the steps of a saga that quotes a price in one, and charges it in the next; and
// those of one that changes the price.
func (w world) purchase(variant, id string, quoted, charged *int64) (buy, change []step) {
	const price, version = `select balance from account where id = 'price'`, `select coalesce(version, 0) from account where id = 'price'`
	raise := exec(`update account set balance = balance + 1, version = coalesce(version, 0) + 1 where id = 'price'`)
	quote, charge := into(quoted, price), into(charged, price)
	switch variant {
	case "semantic lock":
		changer := "change of " + id
		return []step{{do: all(w.acquires("price", id), quote)}, {do: all(charge, w.releases("price", id))}},
			[]step{{do: all(w.acquires("price", changer), raise, w.releases("price", changer))}}
	case "reread":
		var at int64
		return []step{{do: all(into(&at, version), quote)}, {do: all(unchanged("price", &at), charge)}}, []step{{do: raise}}
	}
	return []step{{do: quote}, {do: charge}}, []step{{do: raise}}
}

// testSagasReadTheSameTwice: one saga reads a price twice, while another one changes it.
func testSagasReadTheSameTwice(w world) {
	w.Exec(w.T, `insert into account (id, balance) values ('price', 10)`)
	for _, variant := range []string{without, "semantic lock", "reread"} {
		run, charged, givenUp := 0, 0, 0
		w.tried(variant, "ABA", []int{2, 1}, func(schedule string) bool {
			run++
			var quote, charge int64
			id := fmt.Sprintf("%s %d", variant, run)
			buy, change := w.purchase(variant, id, &quote, &charge)
			done := w.interleave(schedule, play{id: id, steps: buy}, play{id: "change", steps: change})
			if !done[1] {
				w.Errorf("%s, %s: the price was not changed", variant, schedule)
			}
			if done[0] {
				charged++
			} else {
				givenUp++
			}
			return done[0] && quote != charge
		})
		if charged == 0 || (givenUp > 0) != (variant == "reread") {
			w.Errorf("%s: %d were charged, %d given up", variant, charged, givenUp)
		}
	}
}

// raise returns the steps of a saga that reads a balance in one and raises it in the next.
func (w world) raise(variant, id string, amount int64) []step {
	const balance, version = `select balance from account where id = 'a'`, `select coalesce(version, 0) from account where id = 'a'`
	var seen, at int64
	set := func(ctx context.Context, db driver.SQL) error {
		return exec(fmt.Sprintf(`update account set balance = %d where id = 'a'`, seen+amount))(ctx, db)
	}
	switch variant {
	case "sum":
		return []step{{do: into(&seen, balance)}, {do: func(ctx context.Context, db driver.SQL) error {
			call := branch.Call{Transaction: id, Branch: "raise", Operation: branch.Do}
			_, err := w.sum.Apply(ctx, db, w.file, call, "a", amount)
			return err
		}}}
	case "reread":
		return []step{{do: all(into(&at, version), into(&seen, balance))}, {do: all(unchanged("a", &at), set)}}
	case "semantic lock":
		return []step{{do: all(w.acquires("a", id), into(&seen, balance))}, {do: all(set, w.releases("a", id))}}
	}
	return []step{{do: into(&seen, balance)}, {do: set}}
}

// testSagasLoseNoUpdate: two sagas raise one balance. The sum of both is compared with the balance.
func testSagasLoseNoUpdate(w world) {
	run := 0
	for _, variant := range []string{without, "sum", "reread", "semantic lock"} {
		w.tried(variant, "ABAB", []int{2, 2}, func(schedule string) bool {
			run++
			done := 0
			total := func() history.Event {
				return history.Event{Kind: history.State, Op: history.OpTotal, Key: "a", Amount: w.balance("a")}
			}
			v := w.judged(history.CheckUpdates, func(h *history.Writer) {
				h.Record(total())
				var plays []play
				for i, amount := range []int64{30, 50} {
					id := fmt.Sprintf("%d%c", run, 'A'+i)
					call := h.Invoke(history.Event{Lane: id, Op: history.OpAdd, Key: "a", Amount: amount})
					plays = append(plays, play{id, w.raise(variant, id, amount), settles(call)})
				}
				for _, d := range w.interleave(schedule, plays...) {
					if d {
						done++
					}
				}
				h.Record(total())
			})
			if done == 0 || done < 2 && variant != "reread" {
				w.Errorf("%s, %s: %d of two were done", variant, schedule, done)
			}
			return !v.OK()
		})
	}
}
