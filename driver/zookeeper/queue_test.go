package zookeeper

import (
	"fmt"
	"math"
	"testing"
)

func TestReadNode(t *testing.T) {
	t.Parallel()
	const dashed, plain = "0f0e0d0c-0b0a-4908-8706-050403020100", "0f0e0d0c0b0a49088706050403020100"
	for name, want := range map[string]node{
		"_c_" + dashed + "-lock-0000000007":  {id: dashed, family: curator, number: 7},
		"_c_" + plain + "-lock-0000000007":   {id: plain, family: goclient, number: 7},
		plain + "__lock__0000000012":         {id: plain, family: kazoo, number: 12},
		plain + "__rlock__0000000012":        {id: plain, family: kazoo, number: 12},
		"_c_" + dashed + "-lock--2147483648": {id: dashed, family: curator, number: math.MinInt32},
		"_c_" + dashed + "-lock--000000001":  {id: dashed, family: curator, number: -1},
		"_c_" + dashed + "-lock-2147483647":  {id: dashed, family: curator, number: math.MaxInt32},
	} {
		want.name = name
		if got, ok := readNode(name); !ok || got != want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "leases", "x-lock-0000000001", "_c_" + dashed + "-latch-0000000001", "_c_" + dashed + "-__WRIT__0000000001",
		"_c_" + dashed + "-lock-", "_c_" + dashed + "-lock-0000000001x", "_c_" + dashed + "-lock-9999999999",
	} {
		if got, ok := readNode(name); ok {
			t.Errorf("%q is taken for %+v", name, got)
		}
	}
}

// TestQueueIsInTheServersOrder: contenders are ordered as the server counts, not as text, also
// where the numbers wrap.
func TestQueueIsInTheServersOrder(t *testing.T) {
	t.Parallel()
	for _, numbers := range [][]int32{
		{0, 2, 10, 1_000_000_000, 2_000_000_000},
		{-2_000_000_000, -10, -9, -1, 0, 5},
		{math.MaxInt32 - 1, math.MaxInt32, math.MinInt32, math.MinInt32 + 1},
	} {
		var children []string
		for i := range numbers { // in another order
			n := numbers[(i*2+1)%len(numbers)]
			children = append(children, fmt.Sprintf("_c_%032d-lock-%010d", i, n), "leases")
		}
		if len(numbers)%2 == 0 { // the step shares a factor: take them in reverse
			children = nil
			for i := len(numbers) - 1; i >= 0; i-- {
				children = append(children, fmt.Sprintf("_c_%032d-lock-%010d", i, numbers[i]))
			}
		}
		q := queueOf(children)
		if len(q) != len(numbers) {
			t.Fatalf("%d contenders of %q", len(q), children)
		}
		for i, n := range q {
			if n.number != numbers[i] {
				t.Fatalf("%+v, want the order %v", q, numbers)
			}
		}
	}
}

func TestQueueFindsAndKnowsForeigners(t *testing.T) {
	t.Parallel()
	id := newID()
	q := queueOf([]string{"_c_" + id + "-lock-0000000002", "_c_" + newID() + "-lock-0000000001"})
	if q.find(id) != 1 || q.find(newID()) != -1 {
		t.Fatalf("found at %d", q.find(id))
	}
	if _, found := q.foreign(); found {
		t.Fatal("Curator's form is taken for another's")
	}
	const theirs = "0f0e0d0c0b0a49088706050403020100__lock__0000000003"
	if n, found := queueOf([]string{q[0].name, theirs}).foreign(); !found || n.name != theirs {
		t.Fatalf("kazoo is %+v, %v", n, found)
	}
}
