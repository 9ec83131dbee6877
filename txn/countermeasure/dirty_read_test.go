package countermeasure_test

import (
	"context"
	"fmt"
	"strconv"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// reprice is the steps of a saga that sets a price, asks for leave, and undoes the price
// if it is refused; and those of one that reads the price.
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

// testSagasReadNothingDirty: one saga sets a price, and undoes that or not; another one
// reads it. Judged by who wrote what was read.
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

// testOrderOfSteps: a saga credits an account and is then refused, while another one
// spends what there is. In the order that CheckOrder minds, money is spent that was
// never there and the undo cannot have it back; in the other one it is not.
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
