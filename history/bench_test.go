package history

import (
	"fmt"
	"io"
	"iter"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// workload yields 4·calls events: acquires, each followed by one write, over
// keys names.
func workload(calls, keys int) iter.Seq2[Event, error] {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("key-", i)
	}
	return func(yield func(Event, error) bool) {
		seq := int64(0)
		emit := func(e Event) bool {
			seq++
			e.Seq, e.Mono, e.Lane, e.Owner = seq, seq, "A", "a"
			return yield(e, nil)
		}
		for i := range calls {
			key, token := names[i%keys], interlock.Token(i+1)
			ok := emit(Event{Kind: Invoke, Op: OpAcquire, Key: key}) &&
				emit(Event{Kind: Grant, Op: OpAcquire, Key: key, Token: token, Cause: seq}) &&
				emit(Event{Kind: Invoke, Op: OpWrite, Key: key, Token: token}) &&
				emit(Event{Kind: OK, Op: OpWrite, Key: key, Token: token, Cause: seq})
			if !ok {
				return
			}
		}
	}
}

// BenchmarkCheckTokens shows that the time per event does not grow with the
// number of events.
func BenchmarkCheckTokens(b *testing.B) {
	for _, calls := range []int{1_000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("events=%d", calls*4), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				report, err := CheckTokens(workload(calls, 100))
				if err != nil || !report.OK() || report.Accepted != calls {
					b.Fatal(report, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*calls*4), "ns/event")
		})
	}
}

func BenchmarkRecord(b *testing.B) {
	w, err := NewWriter(io.Discard, Header{}, nil)
	testbed.OK(b, err)
	b.ReportAllocs()
	for range b.N {
		w.Invoke(Event{Lane: "A", Op: OpWrite, Key: "account/42", Token: 1}).OK("70")
	}
}
