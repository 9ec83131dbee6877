package history_test

import (
	"bytes"
	"fmt"

	"github.com/interlock-dev/interlock/history"
)

// A write under token 33 is accepted although the store had accepted one under
// 34: the report names both.
func Example() {
	var file bytes.Buffer
	w, err := history.NewWriter(&file, history.Header{Run: "a store without a guard"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	w.Invoke(history.Event{Lane: "B", Op: history.OpWrite, Key: "account/42", Token: 34}).OK("70")
	w.Invoke(history.Event{Lane: "A", Op: history.OpWrite, Key: "account/42", Token: 33}).OK("90")

	r, err := history.NewReader(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := history.CheckTokens(r.Events())
	fmt.Println(report.OK(), err)
	for _, v := range report.Violations {
		fmt.Println(v)
	}
	// Output:
	// false <nil>
	// access order: write of "account/42" under token 33 (seq 4 by A) was accepted, though a write under token 34 (seq 2 by B) had returned before it began
}

// Two workers read 0 and write 1: one of the two additions is lost.
func ExampleCheckUpdates() {
	var file bytes.Buffer
	w, err := history.NewWriter(&file, history.Header{Run: "read, add, write"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	w.Invoke(history.Event{Lane: "A", Op: history.OpAdd, Key: "visits", Amount: 1}).OK("")
	w.Invoke(history.Event{Lane: "B", Op: history.OpAdd, Key: "visits", Amount: 1}).OK("")
	w.Invoke(history.Event{Lane: "A", Op: history.OpRead, Key: "visits"}).
		EndWith(history.Event{Kind: history.OK, Amount: 1})

	r, err := history.NewReader(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	verdict, err := history.CheckUpdates(r.Events())
	fmt.Println(verdict, err)
	// Output:
	// 6 events: 3 done, 0 refused, 0 unknown; 1 violation
	//   total: "visits" was 1 (seq 6 by A), though by what had been done (seq 4 by B) it was between 2 and 2 <nil>
}
