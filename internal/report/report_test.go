package report

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestOrder: reports come in the order of Add, whatever calls them, and Flush calls only its own.
func TestOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var q Queue
		var got []int
		note := func(i int) { got = append(got, i) }
		mine, other := new(int), new(string)
		Add(&q, mine, note, 1)
		q.Flush(mine)
		if Call(&q, note, 2); !slices.Equal(got, []int{1, 2}) {
			t.Fatalf("%v were called here", got)
		}
		blocked := make(chan struct{})
		Add(&q, other, func(i int) { <-blocked; note(i) }, 3)
		Add(&q, mine, note, 4)
		q.Flush(mine) // does not block
		Call(&q, note, 5)
		Add(&q, nil, note, 6)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v", err)
		}
		close(blocked)
		if err := q.Wait(t.Context()); err != nil || !slices.Equal(got, []int{1, 2, 3, 4, 5, 6}) {
			t.Errorf("%v were called, %v", got, err)
		}
		Add(&q, mine, note, 7)
		if err := q.Wait(t.Context()); err != nil || len(got) != 7 {
			t.Errorf("%v were called after a wait without Flush, %v", got, err)
		}
	})
}

// TestBound: a hook that blocks does not fill the memory.
func TestBound(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var q Queue
		blocked, n := make(chan struct{}), 0
		Add(&q, nil, func(struct{}) { <-blocked }, struct{}{})
		synctest.Wait()
		for range 2 * Most {
			Add(&q, nil, func(struct{}) { n++ }, struct{}{})
		}
		close(blocked)
		if err := q.Wait(t.Context()); err != nil || n != Most {
			t.Errorf("%d were called, %v", n, err)
		}
	})
}

// TestPanic: a hook that panics in Call does not stop the others.
func TestPanic(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var q Queue
		n := 0
		func() {
			defer func() { _ = recover() }()
			Call(&q, func(int) {
				Add(&q, nil, func(int) { n++ }, 0)
				panic("boom")
			}, 0)
		}()
		if err := q.Wait(t.Context()); err != nil || n != 1 {
			t.Errorf("%d were called, %v", n, err)
		}
	})
}

// TestNothing: without a hook nothing is allocated.
func TestNothing(t *testing.T) {
	type event struct{ name string }
	var q Queue
	if n := testing.AllocsPerRun(100, func() {
		Call(&q, nil, event{name: "x"})
		Add(&q, &q, nil, event{name: "x"})
		q.Flush(&q)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
