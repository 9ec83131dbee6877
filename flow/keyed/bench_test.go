package keyed_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/flow/keyed"
)

// BenchmarkTask measures a task that does nothing. One operation is one task.
func BenchmarkTask(b *testing.B) {
	nothing := func(context.Context) error { return nil }
	for _, n := range []int{1, 1000} {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = "account/" + strconv.Itoa(i)
		}
		b.Run("go, keys="+strconv.Itoa(n), func(b *testing.B) {
			x, err := keyed.NewExecutor(&keyed.Options{Wait: true, Concurrency: 2, Total: 1024})
			ok(b, err)
			loop(b, func(i int) error { return x.Go(b.Context(), keys[i%n], nothing, nil) })
			ok(b, x.Close(b.Context()))
		})
		b.Run("do, keys="+strconv.Itoa(n), func(b *testing.B) {
			x, err := keyed.NewExecutor(nil)
			ok(b, err)
			loop(b, func(i int) error { return x.Do(b.Context(), keys[i%n], nothing) })
			ok(b, x.Close(b.Context()))
		})
	}
	b.Run("batches of 64", func(b *testing.B) {
		var pending sync.WaitGroup
		x, err := keyed.NewBatches(64, func(context.Context, string, []int) error { return nil }, &keyed.Options{Wait: true, Concurrency: 2})
		ok(b, err)
		done := func(error) { pending.Done() }
		loop(b, func(int) error {
			pending.Add(1)
			return x.Go(b.Context(), "account", 1, done)
		})
		pending.Wait()
		ok(b, x.Close(b.Context()))
	})
	b.Run("stripes", func(b *testing.B) {
		s, err := keyed.NewStripes(0)
		ok(b, err)
		loop(b, func(int) error { return s.Do(b.Context(), "account/42", nothing) })
	})
}

// loop measures step, which gets the number of the operation.
func loop(b *testing.B, step func(i int) error) {
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := step(i); err != nil {
			b.Fatal(err)
		}
	}
}
