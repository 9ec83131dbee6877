package percolator

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// hotRecord returns a record with the maximum number of versions, 2 ms apart, with values
// of size bytes.
func hotRecord(tb testing.TB, size int) record {
	tb.Helper()
	at := timestamp.Of(time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC))
	var r record
	for range 2 * maxVersions {
		at = at.Add(2 * time.Millisecond)
		r = written(tb, r, at, make([]byte, size))
	}
	return r
}

// written returns r after a transaction that began at start wrote a value.
func written(tb testing.TB, r record, start Timestamp, value []byte) record {
	tb.Helper()
	r, _ = prewrite(r, lock{Start: start, Primary: "account", Store: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Kind: put, Value: value,
		Expires: start.Add(3 * time.Second), Alone: true})
	r, a := commit(r, "account", start, start.Add(time.Millisecond))
	if a.outcome != committed {
		tb.Fatalf("a commit answers %v", a.outcome)
	}
	return r
}

// BenchmarkStep reads a record, places a lock, and encodes it.
func BenchmarkStep(b *testing.B) {
	for name, size := range map[string]int{"8 bytes": 8, "1 KiB": 1 << 10} {
		b.Run(name, func(b *testing.B) {
			text := hotRecord(b, size).encode()
			start := timestamp.Of(time.Now())
			b.ReportAllocs()
			for b.Loop() {
				r, err := decode(text)
				testbed.OK(b, err)
				r, _ = prewrite(r, lock{Start: start, Primary: "account", Kind: put, Value: []byte("12345678")})
				_ = r.encode()
			}
			b.ReportMetric(float64(len(text)), "bytes/record")
		})
	}
}
