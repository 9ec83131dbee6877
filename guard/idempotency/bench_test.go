package idempotency_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// BenchmarkRequest measures the cost of the guard: a handler's transaction alone, one with
// the answer in it, and a replay.
func BenchmarkRequest(b *testing.B) {
	for client, server := range map[string]*testbed.Server{databases.Pgx: testbed.Postgres(b), databases.Maria: testbed.MariaDB(b)} {
		w := newWorld(b, databases.Open(b, server, client), nil)
		insert := func(ctx context.Context, db driver.SQL) error { return effect(ctx, db, "k", "pay", 1) }
		b.Run(client+"/alone", func(b *testing.B) {
			for b.Loop() {
				ok(b, w.Try(b.Context(), insert))
			}
		})
		n := 0
		b.Run(client+"/once", func(b *testing.B) {
			for b.Loop() {
				n++
				_, err := w.store.Do(b.Context(), order(fmt.Sprint(n)), func(ctx context.Context) (idempotency.Response, error) {
					return idempotency.LastPhase(ctx, w.records, func(ctx context.Context, db tx) (idempotency.Response, error) {
						return answer(201, "made"), insert(ctx, db)
					})
				})
				ok(b, err)
			}
		})
		b.Run(client+"/replay", func(b *testing.B) {
			for b.Loop() {
				_, err := w.store.Do(b.Context(), order("1"), never)
				ok(b, err)
			}
		})
	}
}
