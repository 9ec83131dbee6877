package countermeasure_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/txn/branch"
)

// raise is the steps of a saga that reads a balance in one and raises it in the next.
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

// testSagasLoseNoUpdate: two sagas raise one balance. Judged by what was added and what
// is there.
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
