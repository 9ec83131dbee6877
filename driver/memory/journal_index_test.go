package memory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// TestJournalCosts: due and forgettable transactions are found without reading the others.
func TestJournalCosts(t *testing.T) {
	j, now := memory.NewJournal(), time.Now()
	const many = 20_000
	begin := func(id string, due time.Time) {
		if errs := j.Append(t.Context(), []driver.Append{{Transaction: id, Records: []driver.Record{{Kind: "begin", Sum: []byte{1}}}, Due: due}}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	for i := range many {
		begin(fmt.Sprint("later", i), now.Add(time.Hour+time.Duration(i)*time.Second))
		begin(fmt.Sprint("ended", i), time.Time{})
	}
	if allocs := testing.AllocsPerRun(100, func() {
		if heads, err := j.Due(t.Context(), 0, driver.Head{}, 10); len(heads) != 10 || err != nil {
			t.Fatalf("%d heads, %v", len(heads), err)
		}
		if due, err := j.DueShards(t.Context(), []int{0}, now); len(due) > 0 || err != nil {
			t.Fatalf("%v are due, %v", due, err)
		}
		if n, err := j.Forget(t.Context(), now.Add(-time.Hour), 10); n > 0 || err != nil {
			t.Fatalf("%d are forgotten, %v", n, err)
		}
	}); allocs > 100 {
		t.Errorf("%v allocations to find ten transactions of %d", allocs, 2*many)
	}
	for left := many; left > 0; left -= 100 {
		if n, err := j.Forget(t.Context(), time.Now().Add(time.Second), 100); n != 100 || err != nil {
			t.Fatalf("%d are forgotten, %v", n, err)
		}
	}
}
