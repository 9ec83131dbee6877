package version_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// BenchmarkApply: a hundred changes in a transaction, each newer than the last one
// of its entity, or each older.
func BenchmarkApply(b *testing.B) {
	const batch = 100
	for _, c := range []struct {
		client string
		start  func(testing.TB, ...string) *testbed.Server
	}{{databases.Pgx, testbed.Postgres}, {databases.Maria, testbed.MariaDB}} {
		db := databases.Open(b, c.start(b), c.client)
		db.Do(b, version.Table{}.Create)
		apply := func(b *testing.B, next func() int64, want version.Outcome) {
			for i := 0; i < b.N; i += batch {
				v := next()
				db.Do(b, func(ctx context.Context, tx driver.SQL) error {
					for j := range batch {
						o, err := version.Table{}.Apply(ctx, tx, change(fmt.Sprint("order ", j), v, ""))
						if err != nil || o != want {
							return fmt.Errorf("%v, %w", o, err)
						}
					}
					return nil
				})
			}
		}
		last := int64(1)
		newer := func() int64 { last++; return last }
		b.Run(c.client+"/newer", func(b *testing.B) { apply(b, newer, version.Applied) })
		b.Run(c.client+"/older", func(b *testing.B) { apply(b, func() int64 { return 1 }, version.Stale) })
	}
	client, err := redis.Dial(testbed.Redis(b).URL())
	ok(b, err)
	b.Cleanup(client.Close)
	s, err := version.NewStore(redis.NewVersions(client, ""), nil)
	ok(b, err)
	last := int64(0)
	b.Run("redis/newer", func(b *testing.B) {
		for b.Loop() {
			last++
			if _, _, err := s.Apply(b.Context(), "order", at1(last)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
