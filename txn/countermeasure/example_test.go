package countermeasure_test

import (
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// A saga that pays a bonus before it is known that the order stands.
func ExampleCheckOrder() {
	found, err := countermeasure.CheckOrder(
		countermeasure.Step{Name: "reserve", Decreases: []string{"stock"}},
		countermeasure.Step{Name: "bonus", Increases: []string{"credit"}},
		countermeasure.Step{Name: "charge", Pivot: true},
		countermeasure.Step{Name: "ship"},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range found {
		fmt.Println(m)
	}
	// Output:
	// step "bonus": it increases "credit", which others may have used when it is undone: move it after the pivot
}

// Transfers above 10,000 euros are not to be seen half done.
func ExampleByValue() {
	transfers := countermeasure.ByValue{Limit: 10_000_00, Below: countermeasure.Saga, Above: countermeasure.TwoPhase}
	for _, cents := range []int64{19_99, 25_000_00} {
		d, err := transfers.Choose(cents)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Type("transfer"), "because:", d)
	}
	// Output:
	// saga:transfer because: saga, since a risk of 1999 does not exceed 1000000
	// 2pc:transfer because: 2pc, since a risk of 2500000 exceeds 1000000
}
