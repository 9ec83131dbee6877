package countermeasure_test

import (
	"fmt"
)

// purchase is the steps of a saga that quotes a price in one, and charges it in the
// next; and those of one that changes the price.
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
