package keyed_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/flow/keyed"
)

// BenchmarkTask is what a task that does nothing costs, beside handing a function
// over a channel to a goroutine that runs it, in the same run. An operation is one
// task in each.
func BenchmarkTask(b *testing.B) {
	nothing := func(context.Context) error { return nil }
	b.Run("channel", func(b *testing.B) { benchmarkChannel(b, 0, nothing) })
	b.Run("buffered channel", func(b *testing.B) { benchmarkChannel(b, 1024, nothing) })
	b.Run("channel and answer", func(b *testing.B) { benchmarkAnswer(b, nothing) })
	for _, keys := range []int{1, 1000} {
		b.Run("go, keys="+strconv.Itoa(keys), func(b *testing.B) { benchmarkGo(b, keys, nothing) })
		b.Run("do, keys="+strconv.Itoa(keys), func(b *testing.B) { benchmarkDo(b, keys, nothing) })
	}
	b.Run("batches of 64", benchmarkBatches)
	b.Run("stripes", benchmarkStripes)
}

func benchmarkChannel(b *testing.B, buffer int, fn func(context.Context) error) {
	b.ReportAllocs()
	ch, end := make(chan func(context.Context) error, buffer), make(chan struct{})
	go func() {
		defer close(end)
		for fn := range ch {
			_ = fn(b.Context())
		}
	}()
	for b.Loop() {
		ch <- fn
	}
	close(ch)
	<-end
}

func benchmarkAnswer(b *testing.B, fn func(context.Context) error) {
	b.ReportAllocs()
	ch, answers := make(chan func(context.Context) error), make(chan error)
	end := make(chan struct{})
	go func() {
		defer close(end)
		for fn := range ch {
			answers <- fn(b.Context())
		}
	}()
	for b.Loop() {
		ch <- fn
		<-answers
	}
	close(ch)
	<-end
}

func keysOf(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "account/" + strconv.Itoa(i)
	}
	return keys
}

func benchmarkGo(b *testing.B, n int, fn func(context.Context) error) {
	b.ReportAllocs()
	x, err := keyed.NewExecutor(&keyed.Options{Wait: true, Concurrency: 2, Total: 1024}) // as the buffered channel
	if err != nil {
		b.Fatal(err)
	}
	keys, i := keysOf(n), 0
	for b.Loop() {
		if err := x.Go(b.Context(), keys[i%n], fn, nil); err != nil {
			b.Fatal(err)
		}
		i++
	}
	if err := x.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func benchmarkDo(b *testing.B, n int, fn func(context.Context) error) {
	b.ReportAllocs()
	x, err := keyed.NewExecutor(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close(b.Context())
	keys, i := keysOf(n), 0
	for b.Loop() {
		if err := x.Do(b.Context(), keys[i%n], fn); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func benchmarkBatches(b *testing.B) {
	b.ReportAllocs()
	var told sync.WaitGroup
	x, err := keyed.NewBatches(64, func(context.Context, string, []int) error { return nil }, &keyed.Options{Wait: true, Concurrency: 2})
	if err != nil {
		b.Fatal(err)
	}
	done := func(error) { told.Done() }
	for b.Loop() {
		told.Add(1)
		if err := x.Go(b.Context(), "account", 1, done); err != nil {
			b.Fatal(err)
		}
	}
	told.Wait()
	if err := x.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func benchmarkStripes(b *testing.B) {
	b.ReportAllocs()
	s, err := keyed.NewStripes(0)
	if err != nil {
		b.Fatal(err)
	}
	fn := func(context.Context) error { return nil }
	for b.Loop() {
		if err := s.Do(b.Context(), "account/42", fn); err != nil {
			b.Fatal(err)
		}
	}
}
