package once_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestThroughput requires that a batch is faster than single messages, and logs by how
// much. Both run in turns.
func TestThroughput(t *testing.T) {
	const rounds, size = 3, 100
	worlds(t, func(t *testing.T, open func(testing.TB) world) {
		w := open(t)
		var single, batch time.Duration
		for round := range rounds {
			began := time.Now()
			for n := range size {
				m := message(round*size + n)
				_, err := w.deliver(t.Context(), m)
				ok(t, err)
			}
			single += time.Since(began)
			began = time.Now()
			from := 1_000_000 + round*size
			_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(from, from+size), effectsOf)
			ok(t, err)
			batch += time.Since(began)
		}
		ratio := float64(single) / float64(batch)
		t.Logf("single %.0f/s, batches of %d %.0f/s: %.1f times as many", rounds*size/single.Seconds(), size, rounds*size/batch.Seconds(), ratio)
		if ratio < 2 {
			t.Errorf("a batch gains only %.1f times", ratio)
		}
	}, databases.Pgx, databases.Maria)
}
